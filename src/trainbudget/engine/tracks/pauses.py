"""Pauses of Python's garbage collector: how long, how many, over the recent past."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

#: Pauses that are remembered: a collection a second for eight minutes.
WINDOW_PAUSES = 512


class PauseTrack:
    """`recent` holds (t_s, seconds) of the newest pauses, oldest first."""

    def __init__(self) -> None:
        self.recent: deque[tuple[float, float]] = deque(maxlen=WINDOW_PAUSES)
        self.total_s = 0.0
        self.count = 0

    def on_gc(self, t_s: float, detail: dict[str, Any]) -> None:
        """One collection that ended at `t_s`; without a sane duration it is not counted."""
        duration_s = detail.get("duration_s")
        if isinstance(duration_s, bool) or not isinstance(duration_s, (int, float)):
            return
        if not math.isfinite(duration_s) or duration_s < 0.0:
            return
        self.recent.append((t_s, float(duration_s)))
        self.total_s += duration_s
        self.count += 1

    def since(self, t_s: float) -> tuple[float, int, float]:
        """Seconds, number and longest of the pauses after `t_s`."""
        seconds, count, longest = 0.0, 0, 0.0
        for at_s, duration_s in reversed(self.recent):
            if at_s < t_s:
                break
            seconds += duration_s
            count += 1
            longest = max(longest, duration_s)
        return seconds, count, longest
