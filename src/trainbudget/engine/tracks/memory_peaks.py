"""The peak since the previous allocator line, from counters that are windows and from ones that are never reset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainbudget.events import Allocator

if TYPE_CHECKING:
    from trainbudget.engine.tracks.run import RunTrack

#: Phases in which a deliberate search for the limit, or nothing of the run itself, is going on.
IGNORED_PHASES = frozenset({"trial", "sanity", "compile"})


class PeakCounter:
    """torch's counter as it is read: a rise dates a peak, a fall means that somebody reset it."""

    def __init__(self) -> None:
        self._known: float | None = None

    def window(self, event: Allocator, since_s: float, run: RunTrack) -> float | None:
        """The peak between the previous line (at `since_s`) and this one, or None where the counter does not tell."""
        peak = event.peak_allocated_bytes
        if peak is None or event.peak_since != "process":
            return peak
        known, self._known = self._known, peak
        return None if (known is not None and peak == known) or _undated(since_s, run) else peak


def _undated(since_s: float, run: RunTrack) -> bool:
    """Whether something since the previous line may have raised the counter that is not training's own."""
    if len(run.sessions) > 1 and run.sessions[-1].begin_s > since_s:
        return True
    for phase in reversed(run.closed):
        if phase.end_s <= since_s:
            break
        if phase.phase in IGNORED_PHASES:
            return True
    for moment in reversed(run.moments):
        if moment.t_s <= since_s:
            break
        if moment.event == "oom":
            return True
    return False
