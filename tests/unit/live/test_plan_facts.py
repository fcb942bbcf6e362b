"""A plan on disk, in a child process, and against the first steps."""

from __future__ import annotations

import json

import pytest

from trainbudget.engine.timeline import Timeline
from trainbudget.errors import ConfigError
from trainbudget.events import Allocator, Bound, BudgetFact, Gpu, Header, LongBatch, Plan, Reading, Step, value_of
from trainbudget.live.auto_plan import toml_of
from trainbudget.live.corrected import CorrectedPlan
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


def test_tables_as_toml_are_read_back() -> None:
    tomllib = pytest.importorskip("tomllib")
    tables = {
        "train": {"micro_batch": 4, "precision": "bf16", "activation_checkpointing": True, "steps": None, "eval_steps": 20},
        "parallel": {"world_size": 1},
        "model": {"config": 'a "quoted" path\\x', "task": None},
        "peft": {"peft": {"type": "lora", "r": 8, "target_modules": ["q_proj", "v_proj"]}},
    }
    expected = {name: {k: v for k, v in values.items() if v is not None} for name, values in tables.items()}
    assert tomllib.loads(toml_of(tables)) == expected


def _timeline(
    planned: Bound, used_gib: float, *, steps: int = 3, plan: Plan | None = None, tokens: float | None = None
) -> Timeline:
    timeline = Timeline()
    timeline.feed(Header(budget=BudgetFact(memory_peak_bytes=planned)))
    timeline.feed(Gpu(gpu=0, memory_limit_bytes=80 * GIB, owned=True))
    if plan is not None:
        timeline.feed(plan)
    for step in range(1, steps + 1):
        timeline.feed(Step(t_s=float(step), step=step, start_s=step - 1.0, max_sequence_tokens=tokens))
        timeline.feed(Allocator(t_s=float(step), gpu=0, allocated_bytes=GIB, reserved_bytes=used_gib * GIB))
        timeline.feed(Reading(t_s=float(step), gpu=0, memory_used_bytes=used_gib * GIB))
    return timeline


def test_measurement_replaces_the_prediction_and_narrows_its_interval() -> None:
    timeline = _timeline(Bound(value=40 * GIB, low=36 * GIB, high=46 * GIB, source="plan"), 42.0)
    corrected = CorrectedPlan()
    fact = corrected.look(timeline)
    assert fact is not None
    bound = fact.memory_peak_bytes
    assert isinstance(bound, Bound)
    assert bound.value == pytest.approx(42 * GIB)
    assert bound.low == pytest.approx(42 * GIB)
    assert bound.high == pytest.approx(42 * 1.03 * GIB)
    assert "measurement" in (bound.source or "")
    assert corrected.look(timeline) is None, "once"


def test_longer_batches_to_come_keep_the_plans_shape() -> None:
    """30 GiB are planned for the 1,024 tokens seen, 40 for the longest batch; 33 are measured: 44 are to be expected."""
    plan = Plan(peak_by_tokens=[[512, 20 * GIB], [1024, 30 * GIB], [4096, 40 * GIB]])
    timeline = _timeline(Bound(value=40 * GIB, source="plan"), 33.0, plan=plan, tokens=1024.0)
    fact = CorrectedPlan().look(timeline)
    assert fact is not None
    assert value_of(fact.memory_peak_bytes) == pytest.approx(44 * GIB)


@pytest.mark.parametrize(
    ("bound", "steps"), [(Bound(value=40 * GIB, source="given"), 5), (Bound(value=40 * GIB, source="plan"), 2)]
)
def test_given_budgets_and_the_first_two_steps_are_left_alone(bound, steps) -> None:
    assert CorrectedPlan().look(_timeline(bound, 42.0, steps=steps)) is None
