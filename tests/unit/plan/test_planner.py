"""The planner's own logic over a fake tracer: JSON keys, verdicts, changes, money, refusals."""

from __future__ import annotations

import dataclasses
import json

import pytest

from trainbudget.errors import ConfigError
from trainbudget.plan.instance import Instance
from trainbudget.plan.planner import request_of_script, steps_of
from trainbudget.plan.script.protocol import Facts
from unit.plan.planning import GIB, FakeTracer, planned, request

DESIGN_KEYS = {
    *(
        "memory",
        "limit_bytes",
        "fits",
        "max_micro_batch",
        "max_sequence_length",
        "step_time_s",
        "tokens_per_s",
        "mfu",
        "run_time_s",
    ),
    *("cost", "changes", "not_understood"),
}


def test_json_has_the_keys_of_the_design():
    out = json.loads(json.dumps(planned(request(steps=100)).to_json()))
    assert set(out) >= DESIGN_KEYS
    assert set(out["memory"]) >= {"allocated_bytes", "reserved_bytes", "device_bytes", "categories", "peak_phase"}
    device = out["memory"]["device_bytes"]
    assert device["low"] < device["value"] < device["high"]
    assert set(out["cost"]) == {"value", "low", "high", "currency", "price_source"}
    assert out["fits"] is True
    assert out["changes"] == []


def test_cost_is_run_time_times_price_with_both_intervals():
    out = planned(request(steps=1000)).to_json()
    assert out["run_time_s"] == pytest.approx(1000 * out["step_time_s"])
    assert out["cost"]["value"] == pytest.approx(out["run_time_s"] / 3600 * 2.0)
    assert out["cost"]["low"] < out["cost"]["value"] < out["cost"]["high"]
    assert out["cost"]["price_source"] == "given"


def test_without_a_dated_price_there_are_gpu_hours_and_no_money():
    out = planned(request(gpu="RTX-4090", price=None, micro_batch=1, steps=1000)).to_json()
    assert out["cost"] is None
    assert out["gpu_hours"] == pytest.approx(out["run_time_s"] / 3600)


def test_without_a_length_there_is_a_step_time_and_no_run_time():
    out = planned(request()).to_json()
    assert out["step_time_s"] > 0
    assert (out["run_time_s"], out["cost"]) == (None, None)


def test_the_largest_batch_and_longest_sequence_that_fit():
    out = planned(request()).to_json()
    # 4 GiB of weights, 10 GiB an example of 1024 tokens, 79.2 GiB: seven fit, with the context and workspaces.
    assert out["max_micro_batch"] == 7
    assert 3 * 1024 < out["max_sequence_length"] < 4 * 1024


def test_what_does_not_fit_gets_changes_that_fit_each_predicted_again():
    plan = planned(request(micro_batch=16))
    assert plan.fits is False
    assert plan.changes
    settings = [c.setting for c in plan.changes]
    assert "activation_checkpointing = true" in settings
    assert "micro_batch = 4, gradient_accumulation = 4" in settings
    assert all(c.memory.fits for c in plan.changes)
    assert [c.step.step.value for c in plan.changes] == sorted(c.step.step.value for c in plan.changes)


@pytest.mark.parametrize(
    ("vocabulary", "settings", "wanted"),
    [
        ("huggingface", {"activation_checkpointing": False}, "activation_checkpointing=True"),
        ("huggingface", {"gradient_checkpointing": False}, "gradient_checkpointing=True"),
        ("huggingface", {}, "per_device_train_batch_size=4, gradient_accumulation_steps=4"),
        ("lightning", {}, "batch_size=4 in the DataLoader, accumulate_grad_batches=4"),
        ("flags", {}, "--batch 4 --accumulate 4"),
    ],
)
def test_changes_are_in_the_users_own_words(vocabulary, settings, wanted):
    facts = Facts(framework=vocabulary, title="x", spec={}, settings=settings)
    assert wanted in [c.setting for c in planned(request(vocabulary, micro_batch=16), FakeTracer(facts)).changes]


def test_changes_are_combined_when_one_alone_does_not_do():
    plan = planned(request("lightning", micro_batch=16, sequence_length=1024 * 100, precision="fp32"))
    assert plan.changes == ()  # nothing helps: one example needs 1000 GiB
    plan = planned(request("huggingface", micro_batch=16, sequence_length=1024 * 20))
    assert [c.setting for c in plan.changes] == [
        "gradient_checkpointing=True, per_device_train_batch_size=2, gradient_accumulation_steps=8"
    ] or "per_device_train_batch_size" in plan.changes[0].setting


def test_a_step_that_cannot_be_traced_is_answered_by_formulas_or_refused():
    tracer = FakeTracer(failing="the step's control flow depends on tensor values")
    with pytest.raises(ConfigError, match="control flow depends on tensor values"):
        planned(request(), tracer)  # the configuration says nothing but a model type
    sized = dataclasses.replace(
        request(), model={"model_type": "x", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100}
    )
    plan = planned(sized, tracer)
    assert plan.to_json()["source"] == "analytic"
    assert plan.to_json()["step_time_s"] is None
    assert "control flow depends on tensor values" in plan.not_understood[0]


def test_this_machines_own_instance_prices_its_own_card():
    here = Instance(provider="aws", instance="p4de.24xlarge")
    plan = planned(request(price=None, steps=10), machine=here)
    assert plan.price.source.startswith("aws p4de.24xlarge")
    elsewhere = planned(request(price=None, gpu="L4", micro_batch=1, steps=10), machine=here)
    assert "p4de" not in elsewhere.price.source


def test_short_batches_make_the_step_faster_than_the_longest():
    facts = Facts(framework="huggingface", title="x", spec={}, token_ratio=0.5)
    half, whole = planned(request(), FakeTracer(facts)).step.step, planned(request()).step.step
    assert half.value == pytest.approx(whole.value / 2)
    assert half.high == whole.high
    assert "average batch" in half.source


@pytest.mark.parametrize(
    ("train", "steps"),
    [({"steps": 7}, 7), ({"tokens": 2048 * 10}, 10), ({"epochs": 2, "samples": 100}, 100), ({}, None)],
)
def test_steps_from_any_length(train, steps):
    assert steps_of(request(**train)) == steps


def test_a_scripts_facts_become_a_request():
    facts = Facts(
        framework="huggingface",
        title="bert · full",
        spec={"micro_batch": 8, "sequence_length": 96, "peft": None},
        steps=30,
        eval_steps=10,
        eval_batches=4,
        model_config={"model_type": "bert"},
    )
    made = request_of_script(facts, request(price=None))
    assert (made.spec.micro_batch, made.spec.sequence_length, made.duration.steps, made.duration.eval_steps) == (8, 96, 30, 10)
    assert (made.vocabulary, made.title, made.spec.evaluation.batches) == ("huggingface", "bert · full", 4)


def test_a_tpu_has_no_memory_prediction():
    with pytest.raises(ConfigError, match="no CUDA compute capability"):
        planned(request(gpu="TPU-v5e"))


def test_memory_limit_is_the_cards_usable_memory():
    assert planned(request()).to_json()["limit_bytes"] == pytest.approx(79.2 * GIB)


def test_nothing_is_searched_where_parameters_alone_do_not_fit():
    tracer = FakeTracer()
    wanted = dataclasses.replace(request(micro_batch=4), memory_gib=3.0)  # the fake's weights are 4 GiB
    plan = planned(wanted, tracer)
    assert (plan.fits, plan.max_micro_batch, plan.max_sequence_length) == (False, 0, 0)
    assert {s.micro_batch for s in tracer.asked if s.optimizer == wanted.spec.optimizer and s.peft is None} == {4}
