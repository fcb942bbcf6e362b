"""A plan on disk as facts."""

from __future__ import annotations

import json

import pytest

from trainbudget.errors import ConfigError
from trainbudget.events import Bound, BudgetFact, LongBatch, Plan, value_of
from trainbudget.live.plan_facts import facts_of_plan, plan_facts

GIB = 1024.0**3
PLAN = {
    "memory": {
        "device_bytes": {"value": 40 * GIB, "low": 38 * GIB, "high": 43 * GIB},
        "peak_by_phase": {"backward": 40 * GIB, "optimizer": 30 * GIB},
    },
    "step_time_s": 0.9,
    "intervals": {"step_time_s": {"value": 0.9, "low": 0.7, "high": 1.2}},
    "run_time_s": 4500.0,
    "cost": {"value": 2.0, "low": 1.5, "high": 2.6, "currency": "USD"},
    "steps": 5000,
    "flops_per_step": 1e15,
    "longest_batches": [{"step": 900, "tokens": 4096}],
}


def test_numbers_keep_their_intervals_and_their_source() -> None:
    budget, plan = facts_of_plan(PLAN)
    assert isinstance(budget, BudgetFact)
    assert isinstance(plan, Plan)
    assert budget.memory_peak_bytes == Bound(value=40 * GIB, low=38 * GIB, high=43 * GIB, source="plan")
    assert budget.step_time_s == Bound(value=0.9, low=0.7, high=1.2, source="plan")
    assert value_of(budget.run_time_s) == 4500.0
    assert (value_of(budget.cost), budget.currency) == (2.0, "USD")
    assert value_of(budget.steps_total) == 5000.0
    assert plan.longest == [LongBatch(step=900, tokens=4096.0)]
    assert plan.phase_peaks == {"backward": 40 * GIB, "optimizer": 30 * GIB}


def test_unknown_numbers_stay_unknown() -> None:
    budget, *rest = facts_of_plan({"memory": {}, "step_time_s": None, "cost": None})
    assert isinstance(budget, BudgetFact)
    assert budget.memory_peak_bytes is None
    assert budget.step_time_s is None
    assert budget.cost is None
    assert rest == []


@pytest.mark.parametrize("content", ["", "[]", "{}", "nonsense"])
def test_a_file_that_is_no_plan_says_so(tmp_path, content) -> None:
    path = tmp_path / "plan.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match="plan"):
        plan_facts(path)


def test_plan_file_round_trip(tmp_path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(PLAN))
    assert plan_facts(path) == facts_of_plan(PLAN)
