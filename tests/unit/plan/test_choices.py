"""Wrong values are told in one line, exit 2, with the nearest valid one: on the command line and in PLAN.toml."""

from __future__ import annotations

import pytest

from trainbudget.cli import main
from trainbudget.errors import ConfigError
from trainbudget.plan.plan_file import plan_of


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--optim", "adamm"], "--optim: 'adamm' is unknown; did you mean"),
        (["--optim", "adamw_torch_fusd"], "'adamw_torch_fused'"),
        (["--precision", "bf61"], "--precision: 'bf61' is unknown; did you mean 'bf16'?"),
        (["--strategy", "fspd"], "--strategy: 'fspd' is unknown; did you mean 'fsdp'?"),
        (["--task", "causal"], "--task: 'causal' is unknown; did you mean 'causal_lm'?"),
        (["--gpu", "A100-80G"], "A100-80GB"),
        (["--batch", "0"], "--batch must be at least 1, not 0"),
        (["--seq", "0"], "--seq must be at least 1, not 0"),
        (["--seq", "-4"], "--seq must be at least 1, not -4"),
        (["--lora", "0"], "--lora must be at least 1, not 0"),
        (["--count", "0"], "--count must be at least 1, not 0"),
        (["--accumulate", "-1"], "--accumulate must be at least 1, not -1"),
        (["--memory-gib", "-1"], "--memory-gib must be above 0, not -1"),
        (["--memory-gib", "nan"], "--memory-gib must be above 0, not nan"),
        (["--steps", "0"], "--steps must be at least 1, not 0"),
        (["--measured-step", "-1"], "--measured-step must be above 0, not -1"),
        (["--max-examples", "0"], "--max-examples must be at least 1, not 0"),
    ],
)
def test_a_wrong_option_is_one_line_and_exit_2(flags, told, capsys):
    code = main(["plan", "--model", "nowhere", "--gpu", "L4", *flags])
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert told in err


@pytest.mark.parametrize(
    ("section", "key", "value", "told"),
    [
        ("train", "optimizer", "adamm", "[train] optimizer: 'adamm' is unknown; did you mean"),
        ("train", "precision", "bf61", "[train] precision: 'bf61' is unknown; did you mean 'bf16'?"),
        ("train", "loop", "trainr", "[train] loop: 'trainr' is unknown; did you mean 'trainer'?"),
        ("train", "activation_checkpointing", "reentrent", "did you mean 'reentrant'?"),
        ("train", "quantization", "nf5", "did you mean 'nf4'?"),
        ("model", "dtype", "bfloat", "did you mean 'bfloat16'?"),
        ("model", "attention", "spda", "did you mean 'sdpa'?"),
        ("model", "task", "masked", "did you mean 'masked_lm'?"),
        ("parallel", "strategy", "zero4", "[parallel] strategy: 'zero4' is unknown; did you mean"),
        ("parallel", "world_size", 0, "[parallel] world_size must be at least 1, not 0"),
        ("gpu", "memory_gib", -2, "[gpu] memory_gib must be above 0, not -2"),
        ("gpu", "count", 0, "[gpu] count must be at least 1, not 0"),
        ("train", "eval_batches", -1, "[train] eval_batches must be at least 1, not -1"),
        ("train", "target_length", 0, "[train] target_length must be at least 1, not 0"),
        ("train", "max_grad_norm", -1.0, "[train] max_grad_norm must be 0 or above, not -1"),
        ("train", "tokens", float("nan"), "[train] tokens must be above 0, not nan"),
    ],
)
def test_a_wrong_value_in_a_plan_file_is_one_line(section, key, value, told):
    tables = {"model": {"config": {"model_type": "llama"}}, "gpu": {"name": "L4"}}
    tables[section] = {**tables.get(section, {}), key: value}
    with pytest.raises(ConfigError) as caught:
        plan_of(tables, where="PLAN.toml")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_clipping_is_a_valid_value():
    tables = {"model": {"config": {"model_type": "llama"}}, "gpu": {"name": "L4"}, "train": {"max_grad_norm": 0}}
    assert plan_of(tables).spec.max_grad_norm == 0
