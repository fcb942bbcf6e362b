"""`trainbudget plan` as a user types it: exit codes, one JSON value on stdout, one line for bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from trainbudget.cli import main

pytestmark = pytest.mark.slow
CORPUS = Path(__file__).parent / "corpus"
LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "vocab_size": 4096,
    "max_position_embeddings": 1024,
}


@pytest.fixture
def model(tmp_path, monkeypatch):
    for name in ("TRAINBUDGET_INSTANCE", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "small-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    return folder


def test_the_one_liner_answers_one_json_value(model, capsys):
    what = ["--model", str(model), "--gpu", "A100-80GB", "--batch", "4", "--seq", "512", "--lora", "8"]
    code = main(["plan", "--json", *what, "--steps", "100", "--price", "2 USD/h"])
    out = json.loads(capsys.readouterr().out)
    assert code == 0
    assert out["fits"] is True
    assert out["title"] == "small-llama · LoRA r=8"
    assert out["max_sequence_length"] == 1024  # as many positions as the model has
    assert out["max_micro_batch"] > 100
    assert out["cost"]["value"] == pytest.approx(out["run_time_s"] / 3600 * 2)
    assert out["trainable_parameters"] < out["parameters"] / 10


def test_a_plan_file_that_does_not_fit_exits_3_with_changes(model, tmp_path, capsys):
    plan = tmp_path / "PLAN.toml"
    plan.write_text(
        f'[model]\nconfig = "{model}"\n[train]\nmicro_batch = 64\nsequence_length = 512\nprecision = "bf16"\n'
        '[gpu]\nname = "A100-80GB"\nmemory_gib = 2\n'
    )
    code = main(["plan", str(plan)])
    text = capsys.readouterr().out
    assert code == 3
    assert "does not fit" in text
    assert "to make it fit" in text
    assert "micro_batch = " in text


def test_options_may_follow_a_plan_file(model, tmp_path, capsys):
    plan = tmp_path / "PLAN.toml"
    plan.write_text(f'[model]\nconfig = "{model}"\n[train]\nsequence_length = 64\n[gpu]\nname = "L4"\n')
    code = main(["plan", str(plan), "--json", "--no-search", "--gpu", "H100", "--steps", "5"])
    out = json.loads(capsys.readouterr().out)
    assert code == 0
    assert (out["gpu"], out["steps"]) == ("H100", 5)


def test_cards_are_compared_by_cost_to_finish(model, capsys):
    code = main(
        ["plan", "--json", "--model", str(model), "--gpus", "L4,A100-80GB", "--batch", "2", "--seq", "128", "--steps", "10"]
    )
    cards = json.loads(capsys.readouterr().out)["cards"]
    assert code == 0
    assert {c["gpu"] for c in cards} == {"L4", "A100-80GB"}
    assert all(c["cost"]["value"] > 0 for c in cards)


def test_an_unknown_kind_of_model_is_answered_by_formulas(model, capsys):
    (model / "config.json").write_text(json.dumps({**LLAMA, "model_type": "made-up"}))
    code = main(["plan", "--json", "--model", str(model), "--gpu", "A100-80GB", "--batch", "1", "--seq", "128"])
    captured = capsys.readouterr()
    out = json.loads(captured.out)
    assert code == 0
    assert (out["source"], out["step_time_s"], out["cost"]) == ("analytic", None, None)
    assert "made-up" in out["not_understood"][0]
    assert "formulas instead of a trace" in captured.err
    device = out["memory"]["device_bytes"]
    assert device["high"] > 1.2 * device["low"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to plan"),
        (["nothing.py"], "no such file"),
        (["--model", "{model}"], "needs --gpu"),
        (["--model", "{model}", "--gpu", "A100"], "did you mean A100-40GB"),
        (["--model", "some-lab/some-model", "--gpu", "L4"], "hf download some-lab/some-model config.json"),
        (["--model", "{model}", "--gpu", "L4", "--lora", "8", "--qlora", "8"], "contradict"),
        (["--model", "{model}", "--gpu", "L4", "--price", "cheap"], "price_per_hour"),
        (["--batch", "4", "{own_loop}"], "is the script's own business"),
        (["{own_loop}"], "training loop of its own"),
    ],
)
def test_bad_input_is_exit_2_and_one_line(arguments, message, model, capsys):
    names = {"{model}": str(model), "{own_loop}": str(CORPUS / "own_loop.py")}
    code = main(["plan", *(names.get(a, a) for a in arguments)])
    captured = capsys.readouterr()
    assert code == 2
    assert message in captured.err
    assert captured.out == ""
    assert "Traceback" not in captured.err


def test_online_reinforcement_learning_is_answered_by_formulas(capsys):
    pytest.importorskip("trl")
    code = main(["plan", "--json", str(CORPUS / "trl_grpo.py")])
    captured = capsys.readouterr()
    out = json.loads(captured.out)
    assert code == 0
    assert out["source"] == "analytic"
    assert "generates while it trains" in out["not_understood"][0]


def test_a_script_is_planned_with_its_own_arguments(capsys):
    code = main(["plan", "--json", "--no-search", "--gpu", "L4", str(CORPUS / "hf_causal_lm.py"), "--batch", "8", "--bf16"])
    out = json.loads(capsys.readouterr().out)
    assert code == 0
    assert (out["gpu"], out["source"], out["steps"]) == ("L4", "trace", 12)
    assert out["tokens_per_s"] > 0
