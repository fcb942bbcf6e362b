"""A printed plan becomes the budget a live run is measured against."""

from __future__ import annotations

import json

import pytest

from trainbudget.errors import ConfigError
from trainbudget.plan.live_facts import budget_fact, plan_fact, read_plan_json
from trainbudget.plan.script.protocol import Facts
from unit.plan.planning import FakeTracer, planned, request


def printed(**options):
    facts = Facts(framework="huggingface", title="x", spec={}, long_batches=[(412, 8192), (17, 8000)])
    return json.loads(json.dumps(planned(request(**options), FakeTracer(facts)).to_json()))


def test_every_known_number_keeps_its_interval_and_source():
    plan = printed(steps=100)
    fact = budget_fact(plan)
    device = plan["memory"]["device_bytes"]
    assert (fact.memory_peak_bytes.value, fact.memory_peak_bytes.low, fact.memory_peak_bytes.high) == tuple(device.values())
    assert fact.step_time_s.low < fact.step_time_s.value < fact.step_time_s.high
    assert (fact.cost.value, fact.currency, fact.cost.source) == (plan["cost"]["value"], "USD", "plan")
    assert fact.steps_total.value == 100


def test_what_the_plan_does_not_know_is_absent():
    fact = budget_fact(printed())
    assert (fact.cost, fact.run_time_s, fact.currency) == (None, None, None)


def test_the_longest_batches_and_phase_peaks():
    plan = printed()
    fact = plan_fact(plan)
    assert [(b.step, b.tokens) for b in fact.longest] == [(412, 8192.0), (17, 8000.0)]
    reserved = plan["memory"]["reserved_bytes"]
    assert fact.peak_by_tokens == [[2048.0, reserved["value"], reserved["low"], reserved["high"]]]
    assert fact.phase_peaks == plan["memory"]["peak_by_phase"]


def test_lengths_are_traced_again_at_their_shape():
    """The first batch has 2 x 128 tokens, the longest 2 x 1024: both, and one in between, are traced and not scaled."""
    facts = Facts(framework="huggingface", title="x", spec={}, long_batches=[(412, 2048)], first_batch=(2, 128))
    tracer = FakeTracer(facts)
    plan = json.loads(json.dumps(planned(request(), tracer, search=False).to_json()))
    rows = plan_fact(plan).peak_by_tokens
    assert [row[0] for row in rows] == [256.0, 724.0, 2048.0]
    assert rows[2][1] == plan["memory"]["reserved_bytes"]["value"]
    # The fake needs 10 GiB for each 1,024 tokens; it traces what it is asked for, the first batch at the longest's shape.
    assert rows[1][1] < rows[2][1]
    assert [(s.sequence_length, longest) for s, longest in tracer.shapes] == [(1024, True), (1024, False), (362, True)]


def test_data_of_one_length_is_traced_once():
    facts = Facts(framework="huggingface", title="x", spec={}, long_batches=[(1, 2048)], first_batch=(2, 1024))
    tracer = FakeTracer(facts)
    planned(request(), tracer, search=False)
    assert len(tracer.asked) == 1


def test_a_plan_written_before_knows_the_longest_batch_alone():
    plan = {**printed(), "longest_batches": [{"step": 9, "tokens": 4096}]}
    plan.pop("peak_by_tokens")
    assert plan_fact(plan).peak_by_tokens[0][:2] == [4096.0, plan["memory"]["reserved_bytes"]["value"]]


def test_a_batch_whose_step_nobody_knows_and_an_evaluation_by_its_live_name():
    plan = printed()
    plan["longest_batches"] = [{"step": None, "tokens": 64}]
    plan["memory"]["peak_by_phase"] = {"backward": 2.0, "evaluation": 3.0}
    fact = plan_fact(plan)
    assert fact.longest[0].step is None
    assert fact.phase_peaks == {"backward": 2.0, "eval": 3.0}


def test_the_optimizers_state_is_told_apart():
    plan = printed()
    assert budget_fact(plan).optimizer_state_bytes is None
    plan["memory"]["categories"]["optimizer_state"] = 5.0
    assert budget_fact(plan).optimizer_state_bytes.value == 5.0


def test_a_file_round_trip_and_a_file_that_is_no_plan(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(printed()))
    assert read_plan_json(path)["fits"] is True
    path.write_text("[]")
    with pytest.raises(ConfigError, match="not a plan"):
        read_plan_json(path)
