"""A plan meets the first steps: measured where it was assumed, its shape kept, what is uncertain scaled."""

from __future__ import annotations

import pytest

from trainbudget.engine.timeline import Timeline
from trainbudget.events import (
    Allocator,
    Bound,
    BudgetFact,
    Event,
    Gpu,
    Header,
    LongBatch,
    Plan,
    Reading,
    Step,
    value_of,
)
from trainbudget.live.corrected import CorrectedPlan, corrected_rows

GIB = 1024.0**3
#: 10 GiB whatever the batch, 10 GiB for each 512 tokens, less than that for the longest.
ROWS = [[512.0, 20 * GIB, 19 * GIB, 21 * GIB], [1024.0, 30 * GIB, 29 * GIB, 31 * GIB], [4096.0, 40 * GIB, 38 * GIB, 42 * GIB]]


class Run:
    """A timeline on one card of 80 GiB, step by step."""

    def __init__(self, budget: Bound | None = None, plan: Plan | None = None) -> None:
        self.timeline, self.step = Timeline(), 0
        self.timeline.feed(Header(budget=BudgetFact(memory_peak_bytes=budget)))
        self.timeline.feed(Gpu(gpu=0, memory_limit_bytes=80 * GIB, owned=True))
        if plan is not None:
            self.timeline.feed(plan)
        self.timeline.feed(Event(event="train_begin"))

    def go(self, held_gib: float, *, steps: int = 3, tokens: float | None = None, context_gib: float = 0.5) -> Timeline:
        for _ in range(steps):
            self.step += 1
            t_s = float(self.step)
            held = held_gib * GIB
            self.timeline.feed(Step(t_s=t_s, step=self.step, start_s=t_s - 1.0, tokens=tokens))
            self.timeline.feed(
                Allocator(t_s=t_s, gpu=0, allocated_bytes=GIB, peak_allocated_bytes=held, reserved_bytes=held, step=self.step)
            )
            self.timeline.feed(
                Reading(t_s=t_s, gpu=0, memory_used_bytes=held + context_gib * GIB, context_bytes=context_gib * GIB)
            )
        return self.timeline


def feed(timeline: Timeline, facts) -> None:
    for fact in facts:
        timeline.feed(fact)


def planned(value_gib: float = 40.5, source: str = "plan") -> Bound:
    return Bound(value=value_gib * GIB, low=0.9 * value_gib * GIB, high=1.15 * value_gib * GIB, source=source)


def test_measurement_replaces_the_prediction_and_narrows_its_interval():
    corrected = CorrectedPlan()
    timeline = Run(planned()).go(42.0)
    (fact,) = corrected.look(timeline)
    bound = fact.memory_peak_bytes
    assert bound.value == pytest.approx(42.5 * GIB)
    assert bound.low == pytest.approx(42.5 * GIB)
    assert bound.high == pytest.approx((42 * 1.03 + 0.5) * GIB)
    assert "measurement" in bound.source
    feed(timeline, [fact])
    assert corrected.look(timeline) == [], "once"


@pytest.mark.parametrize(("source", "steps"), [("given", 5), ("plan", 2)])
def test_given_budgets_and_the_first_two_steps_are_left_alone(source, steps):
    assert CorrectedPlan().look(Run(planned(source=source)).go(42.0, steps=steps)) == []


def test_longer_batches_to_come_keep_the_plans_shape():
    """30 GiB were planned for the 1,024 tokens seen and 33 are measured: activations are 15 % more than thought."""
    corrected = CorrectedPlan()
    timeline = Run(planned(), Plan(peak_by_tokens=ROWS, longest=[LongBatch(step=900, tokens=4096.0)])).go(33.0, tokens=1024.0)
    budget, plan = corrected.look(timeline)
    assert [row[0] for row in plan.peak_by_tokens] == [512.0, 1024.0, 4096.0]
    assert [row[1] / GIB for row in plan.peak_by_tokens] == pytest.approx([10 + 1.15 * 10, 33.0, 10 + 1.15 * 30])
    assert plan.longest == [LongBatch(step=900, tokens=4096.0)]
    assert value_of(budget.memory_peak_bytes) == pytest.approx((44.5 + 0.5) * GIB)
    low, high = plan.peak_by_tokens[2][2:]
    assert low == pytest.approx((44.5 - (0.99**2 + 1.15**2) ** 0.5) * GIB)
    assert high == pytest.approx((44.5 + (0.99**2 + 1.15**2) ** 0.5) * GIB)


def test_a_longer_batch_is_another_chance():
    corrected = CorrectedPlan()
    run = Run(planned(), Plan(peak_by_tokens=ROWS, longest=[LongBatch(step=900, tokens=4096.0)]))
    timeline = run.go(33.0, tokens=1024.0)
    feed(timeline, corrected.look(timeline))
    run.go(33.0, tokens=1024.0)
    assert corrected.look(timeline) == []
    run.go(42.0, tokens=4096.0)
    budget, plan = corrected.look(timeline)
    assert plan.peak_by_tokens[2][1] == pytest.approx(42 * GIB)
    assert value_of(budget.memory_peak_bytes) == pytest.approx(42.5 * GIB)


def test_a_plan_that_comes_later_is_corrected_too():
    corrected, run = CorrectedPlan(), Run()
    timeline = run.go(33.0, tokens=1024.0, steps=50)
    assert corrected.look(timeline) == []
    feed(timeline, [BudgetFact(memory_peak_bytes=planned()), Plan(peak_by_tokens=ROWS, longest=[LongBatch(tokens=4096.0)])])
    assert len(corrected.look(timeline)) == 2


@pytest.mark.parametrize(
    ("tokens", "measured_gib", "longest_gib"),
    [
        (1024.0, 30.0, 40.0),  # as planned
        (1024.0, 45.0, 10 + 10 + 1.25 * 30),  # 15 GiB too much: activations take 5 of it, 10 do not grow
        (1024.0, 20.0, 10 - 6 + 0.8 * 30),
        (32.0, 12.0, 40.0 + 12.0 - 10.625),  # so short a batch says nothing of the activations: the difference stays what it is
    ],
)
def test_only_what_a_plan_may_be_off_is_taken_for_activations(tokens, measured_gib, longest_gib):
    assert corrected_rows(ROWS, tokens, measured_gib * GIB)[2][1] == pytest.approx(longest_gib * GIB)


def test_one_planned_length_says_nothing_of_another():
    row = [[4096.0, 40 * GIB, 38 * GIB, 42 * GIB]]
    assert corrected_rows(row, 1024.0, 33 * GIB) == []
    assert corrected_rows(row, 4096.0, 33 * GIB)[0][1] == pytest.approx(33 * GIB)
    timeline = Run(planned(), Plan(peak_by_tokens=row, longest=[LongBatch(step=9, tokens=4096.0)])).go(33.0, tokens=1024.0)
    assert CorrectedPlan().look(timeline) == []


def test_lengths_that_nobody_tells_leave_the_plan_as_it_is():
    timeline = Run(planned(), Plan(peak_by_tokens=ROWS, longest=[LongBatch(step=900, tokens=4096.0)])).go(33.0)
    assert CorrectedPlan().look(timeline) == []
