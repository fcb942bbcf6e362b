"""What a plan tells the engine of batches to come: predicted before the first step, forecast while steps go on."""

from __future__ import annotations

import pytest

from trainbudget.events import Allocator, Bound, BudgetFact, LongBatch, Plan
from trainbudget.findings import Severity
from unit.engine.feeding import findings
from unit.engine.minimal.memory import card, course, flat, hold
from unit.engine.traces import GIB

#: 20 GiB at 1,000 tokens, 35 at 4,000, 60 at 9,000: attention that grows faster than the batch.
ROWS = [[1000, 20 * GIB, 19 * GIB, 21 * GIB], [4000, 35 * GIB, 33 * GIB, 37 * GIB], [9000, 60 * GIB, 57 * GIB, 63 * GIB]]


def one(events, code):
    (found,) = findings(events, code)
    return found


def run(longest: list[LongBatch], *, steps: int = 30, tokens: float = 1000.0, rows=ROWS):
    """A card of 40 GiB, batches of `tokens`; the plan is told before training begins."""
    build = card(budget={"steps_total": 1000}).add(Plan(peak_by_tokens=rows, longest=longest)).start()
    return course(build, steps, flat(15.0, 20.0), tokens=tokens, max_sequence_tokens=tokens, samples=1.0)


def test_a_long_batch_is_forecast_at_its_own_peak_and_step():
    found = one(run([LongBatch(step=400, tokens=9000.0)]).end("interrupted"), "oom_forecast")
    assert found.forecast.at_step == 400
    assert found.evidence["predicted_bytes"] == 60 * GIB
    assert (found.evidence["predicted_low_bytes"], found.evidence["predicted_high_bytes"]) == (57 * GIB, 63 * GIB)
    assert "9000 tokens at step 400 will need 60.0 GiB" in found.summary


def test_between_two_lengths_the_plan_is_followed_and_not_scaled():
    """6,500 tokens: half way between 35 and 60 GiB."""
    found = one(run([LongBatch(step=400, tokens=6500.0)]).end("interrupted"), "oom_forecast")
    assert found.evidence["predicted_bytes"] == pytest.approx(47.5 * GIB)


def test_of_equally_long_batches_the_first_counts():
    build = run([LongBatch(step=700, tokens=9000.0), LongBatch(step=300, tokens=9000.0), LongBatch(step=2, tokens=8000.0)])
    assert one(build.end("interrupted"), "oom_forecast").forecast.at_step == 300


def test_a_batch_whose_step_nobody_knows_is_forecast_without_one():
    found = one(run([LongBatch(tokens=9000.0)]).end("interrupted"), "oom_forecast")
    assert found.forecast is None
    assert "a batch of 9000 tokens will need" in found.summary


@pytest.mark.parametrize(
    "longest",
    [
        [LongBatch(step=400, tokens=4000.0)],  # fits
        [LongBatch(step=1, tokens=9000.0)],  # has been
        [LongBatch(tokens=900.0)],  # one as long has been
        [LongBatch(step=400, tokens=1000.0)],
    ],
    ids=["fits", "passed", "seen", "same"],
)
def test_what_fits_or_has_been_is_silent(longest):
    assert findings(run(longest).end("interrupted"), "oom_forecast") == []


def test_a_batch_as_long_that_has_fitted_ends_the_forecast():
    build = run([LongBatch(tokens=9000.0)])
    course(build, 5, flat(15.0, 38.0), tokens=9000.0, max_sequence_tokens=9000.0, samples=1.0)
    course(build, 200, flat(15.0, 20.0), tokens=1000.0, max_sequence_tokens=1000.0, samples=1.0)
    assert one(build.end("interrupted"), "oom_forecast").cleared_s is not None


def test_a_correction_by_the_first_steps_can_raise_or_take_back_the_forecast():
    longest = [LongBatch(step=400, tokens=4000.0)]
    higher = [[t, v + 6 * GIB, low + 6 * GIB, high + 6 * GIB] for t, v, low, high in ROWS]
    build = run(longest).add(Plan(peak_by_tokens=higher, longest=longest))
    course(build, 20, flat(15.0, 26.0), tokens=1000.0, max_sequence_tokens=1000.0, samples=1.0)
    assert one(build.end("interrupted"), "oom_forecast").evidence["predicted_bytes"] == 41 * GIB
    build = run(longest, rows=higher).add(Plan(peak_by_tokens=ROWS, longest=longest))
    course(build, 200, flat(15.0, 20.0), tokens=1000.0, max_sequence_tokens=1000.0, samples=1.0)
    assert one(build.end("interrupted"), "oom_forecast").cleared_s is not None


def test_before_the_first_step_the_longest_batch_is_predicted():
    build = card(budget={"steps_total": 1000})
    build.add(BudgetFact(memory_peak_bytes=Bound(value=39 * GIB, low=37 * GIB, high=41 * GIB, source="plan")))
    build.add(Plan(peak_by_tokens=ROWS, longest=[LongBatch(step=400, tokens=9000.0)])).start().wait(20.0)
    found = one(build.end("interrupted"), "oom_predicted")
    assert (found.severity, found.forecast.at_step) == (Severity.CRITICAL, 400)


def test_before_the_first_optimizer_step_its_states_are_added_to_what_was_measured():
    """The plan says how large the states will be; what the first micro-batches take is measured: 18 and 24 are too much."""
    build = card().add(BudgetFact(memory_peak_bytes=Bound(value=38 * GIB, source="plan")))
    build.add(BudgetFact(optimizer_state_bytes=Bound(value=24 * GIB, source="plan"))).start()
    for _ in range(4):
        hold(build, 9.0, 18.0).wait(4.0)
        build.add(Allocator(gpu=0, at="sample", **build.allocator[0]))
    found = one(build.end("interrupted"), "oom_predicted")
    assert found.evidence["needed_bytes"] == 42 * GIB
    assert found.evidence["state_bytes"] == 24 * GIB
