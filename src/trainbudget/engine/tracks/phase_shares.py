"""Evaluation, saving and logging: how often, how long, and which share of the time of whole cycles they take."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

#: Cycles that are looked at together: enough to even out one slow one, few enough to notice a change.
CYCLES = 8
#: Closed phases kept to find out what was nested in the one that closes now.
RECENT = 32

WATCHED = ("eval", "save", "log")


class Cycle(NamedTuple):
    """One phase and the training before it. Wall seconds; `own_s` leaves out phases nested in it."""

    begin_s: float
    start_s: float
    end_s: float
    own_s: float


class PhaseShare:
    """One kind of phase within a session."""

    def __init__(self) -> None:
        self.cycles: deque[Cycle] = deque(maxlen=CYCLES)
        self.count = 0
        self.total_s = 0.0

    def add(self, begin_s: float, start_s: float, end_s: float, own_s: float) -> None:
        self.cycles.append(Cycle(self.cycles[-1].end_s if self.cycles else begin_s, start_s, end_s, own_s))
        self.count += 1
        self.total_s += own_s

    @property
    def last_end_s(self) -> float | None:
        return self.cycles[-1].end_s if self.cycles else None

    def seconds(self) -> float:
        """Seconds in the newest cycles' phases."""
        return sum(c.own_s for c in self.cycles)

    def span_s(self, now_s: float) -> float:
        """Wall seconds of the newest cycles; a cycle under way counts once it is longer than the others."""
        if not self.cycles:
            return 0.0
        begin, end = self.cycles[0].begin_s, self.cycles[-1].end_s
        usual = (end - begin) / len(self.cycles)
        return (now_s if now_s - end > usual else end) - begin


class PhaseShares:
    """All watched phases of the current session, from its first step on."""

    def __init__(self) -> None:
        self.kinds: dict[str, PhaseShare] = {name: PhaseShare() for name in WATCHED}
        self.last_save_end_s: float | None = None  # of the whole process; wall seconds
        self.saves = 0
        self._recent: deque[tuple[float, float]] = deque(maxlen=RECENT)

    def begin_session(self) -> None:
        self.kinds = {name: PhaseShare() for name in WATCHED}

    def on_phase(self, name: str, start_s: float, end_s: float, first_step_s: float | None) -> None:
        """A phase closed. Times are wall seconds; `first_step_s` None = no step of this session has begun yet."""
        nested = sum(e - s for s, e in self._recent if s >= start_s and e <= end_s)
        if nested:
            self._recent = deque((r for r in self._recent if not (r[0] >= start_s and r[1] <= end_s)), maxlen=RECENT)
        self._recent.append((start_s, end_s))
        if name == "save":
            self.last_save_end_s = end_s
            self.saves += 1
        share = self.kinds.get(name)
        if share is not None and first_step_s is not None and start_s >= first_step_s:
            share.add(first_step_s, start_s, end_s, max(0.0, end_s - start_s - nested))
