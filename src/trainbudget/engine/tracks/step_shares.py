"""How the recent steps spend their time: waiting, busy, optimizing, communicating; computed when somebody asks."""

from __future__ import annotations

from dataclasses import dataclass

from trainbudget.engine.tracks.run import RunTrack
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
        waits_s: the waits of single steps in order, oldest first.
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
        waits: list[float] = []
        wait_sum = wall = idle = 0.0
        count, idle_known = 0, records[-1].event.data_wait_idle_s is not None
        for r in records:
            wait = r.wait_s
            if wait is None or r.step in firsts:
                continue
            waits += [wait] * min(r.count, MIN_STEPS)  # one for each step, so that distances count steps
            wait_sum += wait * r.count
            wall += (wait + r.duration_s) * r.count
            count += r.count
            if idle_known:
                part = r.event.data_wait_idle_s
                idle_known = part is not None
                idle += part or 0.0
        known = wall > 0.0 and count >= MIN_STEPS // 2
        newest = records[-1].event
        return StepShares(
            steps=sum([r.count for r in records]),
            step_s=self._steps.median_s() or 0.0,
            wait_ratio=wait_sum / wall if known else None,
            wait_idle_ratio=min(wait_sum, idle) / wall if known and idle_known else None,
            wait_s=wait_sum / count if known else None,
            wait_median_s=_middle(waits) if known else None,
            waits_s=tuple(waits),
            busy_ratio=_ratio(records, [r.busy_s for r in records]),
            # What the newest step does not tell, the others do not either: no pass over them.
            optimizer_ratio=None
            if newest.optimizer_s is None
            else _ratio(records, [_each(r, r.event.optimizer_s) for r in records]),
            communication_ratio=None
            if newest.communication_s is None
            else _ratio(records, [_each(r, r.event.communication_s) for r in records]),
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
    values = [s / r.duration_s for r, s in zip(records, seconds, strict=True) if s is not None and r.duration_s > 0.0]
    return min(1.0, _middle(values)) if values and 2 * len(values) >= len(records) else None


def _middle(values: list[float]) -> float:
    """The upper median: half as expensive as the exact one, and no different among dozens of values."""
    return sorted(values)[len(values) // 2]
