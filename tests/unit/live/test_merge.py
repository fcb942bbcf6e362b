"""Lines that stand for several steps."""

from __future__ import annotations

import math

from trainbudget.events import Step
from trainbudget.live.merge import merge_steps, mergeable


def step(number: int, wait_s: float | None = 0.0, **more: object) -> Step:
    return Step(t_s=float(number), step=number, start_s=number - 0.01, step_s=0.01, data_wait_s=wait_s, **more)  # type: ignore[arg-type]


def test_quick_steps_share_a_line_with_their_sums():
    both = merge_steps(step(1, 0.01, samples=8.0), step(2, 0.02, samples=8.0))
    assert mergeable(step(1, 0.01), step(2, 0.02))
    assert (both.count, both.samples, round(both.data_wait_s or 0.0, 6)) == (2, 16.0, 0.03)


def test_a_step_that_was_waited_for_keeps_its_line():
    """A burst of four batches every two seconds was one line with the mean of its waits: nobody saw the rhythm."""
    assert not mergeable(step(1, 2.0), step(2, 0.0))
    assert not mergeable(step(1, 0.0), step(2, 2.0))
    merged = merge_steps(merge_steps(step(1, 0.06), step(2, 0.06)), step(3, 0.0))
    assert mergeable(merged, step(4, 0.0))


def test_unknown_waits_merge_and_skipped_steps_do_not():
    assert mergeable(step(1, None), step(2, None))
    assert not mergeable(step(1, skipped=True), step(2))


def test_the_loss_of_a_line_is_the_mean_of_its_steps_and_nan_stays_visible():
    """The largest loss of a line fell when the pace did, because fewer steps shared a line: a flat loss looked like a fall."""
    three = merge_steps(merge_steps(step(1, loss=1.0), step(2, loss=2.0)), step(3, loss=6.0))
    assert three.loss == 3.0
    assert merge_steps(step(1, loss=None), step(2, loss=2.0)).loss == 2.0
    assert math.isnan(merge_steps(step(1, loss=math.nan), step(2, loss=2.0)).loss or 0.0)
    assert merge_steps(step(1, grad_norm=3.0), step(2, grad_norm=2.0)).grad_norm == 3.0
