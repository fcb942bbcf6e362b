"""A budget where nobody gave one: learned from the run's own first steady steps, and marked as learned."""

from __future__ import annotations

from trainbudget.engine.timeline import Timeline
from trainbudget.engine.tracks.device import DeviceTrack
from trainbudget.engine.tracks.series import quantile
from trainbudget.events import Bound, BudgetFact

#: Steady steps to learn from; fewer say nothing about the spread.
LEARN_STEPS = 50
#: The peak must have stood still for as many steps, and as many readings must have come since the first step: a run shorter
#: than that between two readings has shown its driver's idle level and nothing of its own.
STILL_STEPS = 20
LEAST_READINGS = 10
#: A peak that moves by less than this still stands: cached blocks and workspaces come and go.
STILL_RATIO = 0.01


class LearnedBudget:
    """Looks until it has learned the time of a step and the peak of memory, each once."""

    def __init__(self) -> None:
        self._time_done = False
        self._memory = _StillPeak()

    def look(self, timeline: Timeline) -> BudgetFact | None:
        """What was learned since the last look; None = nothing.

        The interval of a step's time is the 5 % to 95 % range of the steps seen, at least +-10 %: runs with batches of
        variable length get the room they need.
        """
        if self._time_done and (self._memory.done or "memory_peak_bytes" in timeline.budget):
            return None
        peak = self._memory.look(timeline)
        records = timeline.steps.window() if timeline.steps.steady_since_step is not None else []
        if not timeline.steps.enough(records, LEARN_STEPS):
            return None
        fact = BudgetFact(t_s=timeline.now_s, source="learned")
        if not self._time_done and "step_time_s" not in timeline.budget:
            durations = [r.duration_s for r in records]
            middle = quantile(durations, 0.5) or 0.0
            low, high = quantile(durations, 0.05) or 0.0, quantile(durations, 0.95) or 0.0
            fact.step_time_s = Bound(value=middle, low=min(low, 0.9 * middle), high=max(high, 1.1 * middle), source="learned")
        self._time_done = True
        if peak is not None:
            self._memory.done = True
            if "memory_peak_bytes" not in timeline.budget:
                fact.memory_peak_bytes = Bound(value=peak, low=0.9 * peak, high=1.1 * peak, source="learned")
        return None if fact.step_time_s is None and fact.memory_peak_bytes is None else fact


class _StillPeak:
    """The largest peak of our devices, once it has stopped rising."""

    def __init__(self) -> None:
        self.done = False
        self._peak = 0.0
        self._steps = 0  # of the run, when the peak rose last
        self._readings: dict[int, int] = {}  # device -> readings before the first step was seen

    def look(self, timeline: Timeline) -> float | None:
        """The peak in bytes, or None while it rises, or while too little has been read to say so."""
        if self.done or timeline.steps.total == 0:
            return None
        devices = timeline.owned
        for device in devices:
            self._readings.setdefault(device.index, device.readings)
        known = [(peak, d) for d in devices if (peak := _own_peak_bytes(d)) is not None]
        if not known:
            return None
        peak, device = max(known, key=lambda pair: pair[0])
        if peak > self._peak * (1.0 + STILL_RATIO):
            self._peak, self._steps = peak, timeline.steps.total
            return None
        still = timeline.steps.total - self._steps >= STILL_STEPS
        return peak if still and device.readings - self._readings[device.index] >= LEAST_READINGS else None


def _own_peak_bytes(device: DeviceTrack) -> float | None:
    """What the run has held at most, by its allocator, else by the device if a process of ours is on it; None = unknown."""
    if device.peak_reserved_bytes:
        return device.peak_reserved_bytes
    rows = device.last.processes if device.last is not None else None
    own = any(p.own and p.memory_bytes for p in rows or ())
    return device.peak_used_bytes if own and device.peak_used_bytes else None
