"""How the recent steps spend their time: waiting, busy, optimizing, communicating; computed when somebody asks."""

from __future__ import annotations

from dataclasses import dataclass

from trainbudget.engine.tracks.run import RunTrack
from trainbudget.engine.tracks.series import median
from trainbudget.engine.tracks.steps import MIN_STEPS, StepRecord, StepTrack


@dataclass(frozen=True, slots=True)
class StepShares:
    """Of the steady steps of the window. Ratios are of the steps' wall time or, where said, of the step itself.

    Attributes:
        steps: how many.
        step_s: median seconds of one step.
        wait_ratio: share of wall time spent waiting for data, first steps of epochs left out; None = not measured.
        wait_idle_ratio: the part of it in which the GPU was idle, None = not measured.
        wait_s, wait_median_s: mean and median wait before one step.
        waits_s: the waits in order, oldest first.
        busy_ratio: median share of a step in which the GPU was busy, None = not measured.
        optimizer_ratio, communication_ratio: median shares of a step.
        since_s: wall second at which the window begins.
    """

    steps: int
    step_s: float
    wait_ratio: float | None
    wait_idle_ratio: float | None
    wait_s: float | None
    wait_median_s: float | None
    waits_s: tuple[float, ...]
    busy_ratio: float | None
    optimizer_ratio: float | None
    communication_ratio: float | None
    since_s: float


class StepShareTrack:
    """`current()` costs one pass over the window after a new step, nothing after that."""

    def __init__(self, steps: StepTrack, run: RunTrack) -> None:
        self._steps = steps
        self._run = run
        self._at: tuple[int, int] | None = None
        self._shares: StepShares | None = None

    def current(self) -> StepShares | None:
        """The shares now, or None of fewer than 20 steady steps in this session."""
        at = (self._steps.total, self._steps.session_steps)
        if at != self._at:
            self._at = at
            self._shares = self._compute()
        return self._shares

    def _compute(self) -> StepShares | None:
        if self._steps.warming or self._steps.session_steps < MIN_STEPS:
            return None
        records = self._steps.window()
        if not self._steps.enough(records):
            return None
        firsts = self._first_steps(records[0].step)
        waiting = [r for r in records if r.wait_s is not None and r.step not in firsts]
        waits = tuple(r.wait_s or 0.0 for r in waiting)
        wait_sum = sum(r.wait_s * r.count for r in waiting if r.wait_s is not None)
        wall = wait_sum + sum(r.duration_s * r.count for r in waiting)
        count = sum(r.count for r in waiting)
        known = wall > 0.0 and self._steps.enough(waiting, MIN_STEPS // 2)
        idle = [r.event.data_wait_idle_s for r in waiting]
        idle_known = known and all(value is not None for value in idle)
        return StepShares(
            steps=sum(r.count for r in records),
            step_s=median([r.duration_s for r in records]) or 0.0,
            wait_ratio=wait_sum / wall if known else None,
            wait_idle_ratio=min(wait_sum, sum(value or 0.0 for value in idle)) / wall if idle_known else None,
            wait_s=wait_sum / count if known else None,
            wait_median_s=median(list(waits)) if known else None,
            waits_s=waits,
            busy_ratio=_ratio(records, [r.busy_s for r in records]),
            optimizer_ratio=_ratio(records, [_each(r, r.event.optimizer_s) for r in records]),
            communication_ratio=_ratio(records, [_each(r, r.event.communication_s) for r in records]),
            since_s=records[0].start_s,
        )

    def _first_steps(self, since_step: int) -> set[int]:
        out = set()
        for epoch in reversed(self._run.epochs):
            if epoch.first_step is None:
                continue
            out.add(epoch.first_step)
            if epoch.first_step < since_step:
                break
        return out


def _each(record: StepRecord, seconds: float | None) -> float | None:
    return None if seconds is None else seconds / record.count


def _ratio(records: list[StepRecord], seconds: list[float | None]) -> float | None:
    """Median share of a step, or None where fewer than half of the steps say it."""
    values = [min(1.0, s / r.duration_s) for r, s in zip(records, seconds, strict=True) if s is not None and r.duration_s > 0.0]
    return median(values) if 2 * len(values) >= len(records) else None
