"""PLAN.toml: strict keys, clear one-line errors, and what a good file becomes."""

from __future__ import annotations

import pytest

from trainbudget.errors import ConfigError
from trainbudget.plan.plan_file import plan_of, read_plan

GOOD = """
[model]
config = "config.json"
task = "causal_lm"
dtype = "bfloat16"
[train]
micro_batch = 4
sequence_length = 2048
gradient_accumulation = 8
precision = "bf16"
optimizer = "adamw_torch_fused"
activation_checkpointing = true
peft = {type = "lora", r = 16}
steps = 5000
eval_steps = 500
save_steps = 1000
[gpu]
name = "A100-80GB"
price_per_hour = "1.49 USD/h"
"""


def write(tmp_path, text):
    path = tmp_path / "PLAN.toml"
    path.write_text(text)
    return path


def test_a_good_file(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    request = read_plan(write(tmp_path, GOOD))
    spec = request.spec
    assert (spec.micro_batch, spec.sequence_length, spec.gradient_accumulation, spec.precision) == (4, 2048, 8, "bf16")
    assert (spec.activation_checkpointing, spec.peft, spec.strategy, spec.world_size) == (
        "non_reentrant",
        {"type": "lora", "r": 16},
        "none",
        1,
    )
    assert request.model == str(tmp_path / "config.json")
    assert (request.gpu.name, request.count, request.charges.given) == ("A100-80GB", 1, "1.49 USD/h")
    assert (request.duration.steps, request.duration.eval_steps, request.duration.save_steps) == (5000, 500, 1000)
    assert request.limit_bytes == pytest.approx(79.2 * 1024**3)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("micro_batch", "micro_bach", r"PLAN.toml: \[train\] has no key 'micro_bach'; did you mean 'micro_batch'\?"),
        ("micro_batch", "per_device_train_batch_size", "it is micro_batch here"),
        ("[train]", "[trian]", r"no table \[trian\]; did you mean 'train'\?"),
        ("micro_batch = 4", 'micro_batch = "four"', r"\[train\] micro_batch: expected `int"),
        ("micro_batch = 4", "micro_batch = 0", "micro_batch must be at least 1"),
        ("steps = 5000", "steps = 5000\ntokens = 1e9", "steps and tokens contradict each other"),
        ("steps = 5000", "epochs = 3", "epochs needs samples"),
        ('"A100-80GB"', '"A100"', "did you mean A100-40GB, A100-80GB"),
        ('name = "A100-80GB"', "count = 2", r"\[gpu\] needs name"),
        ('"1.49 USD/h"', '"cheap"', "price_per_hour"),
        ('price_per_hour = "1.49 USD/h"', 'price_per_hour = 1\nprovider = "aws"', "contradict each other"),
        ('price_per_hour = "1.49 USD/h"', 'instance = "p5.48xlarge"', "instance needs provider"),
        ('config = "config.json"', "", "needs either config or import"),
        ('peft = {type = "lora", r = 16}', 'quantization = "nf4"', "set peft"),
        ('precision = "bf16"', 'precision = "bf17"', "bf17"),
        ("[gpu]", "[gpu", "not valid TOML"),
    ],
)
def test_a_bad_file_is_one_clear_line(tmp_path, old, new, message):
    with pytest.raises(ConfigError, match=message) as caught:
        read_plan(write(tmp_path, GOOD.replace(old, new, 1)))
    assert "\n" not in str(caught.value).strip()


def test_a_key_in_the_wrong_table_names_its_home(tmp_path):
    with pytest.raises(ConfigError, match=r"it belongs in \[train\]"):
        read_plan(write(tmp_path, GOOD.replace("[gpu]", "[gpu]\nsave_steps = 5")))


def test_several_gpus_mean_ddp_unless_said_otherwise():
    tables = {"model": {"config": {"model_type": "llama"}}, "gpu": {"name": "H100", "count": 8}}
    assert (plan_of(tables).spec.strategy, plan_of(tables).spec.world_size) == ("ddp", 8)
    assert plan_of({**tables, "parallel": {"strategy": "fsdp"}}).spec.strategy == "fsdp"


def test_an_import_is_a_model():
    tables = {"model": {"import": "pkg.mod:build"}, "gpu": {"name": "H100"}}
    assert plan_of(tables).model == "pkg.mod:build"


def test_a_missing_file_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        read_plan(tmp_path / "nothing.toml")
