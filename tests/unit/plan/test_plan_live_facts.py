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
    assert fact.peak_by_tokens[0][:2] == [8192.0, plan["memory"]["device_bytes"]["value"]]
    assert fact.phase_peaks == plan["memory"]["peak_by_phase"]


def test_a_file_round_trip_and_a_file_that_is_no_plan(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(printed()))
    assert read_plan_json(path)["fits"] is True
    path.write_text("[]")
    with pytest.raises(ConfigError, match="not a plan"):
        read_plan_json(path)
