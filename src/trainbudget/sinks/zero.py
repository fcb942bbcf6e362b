"""Absolute time of a trace's zero, from when its reports arrive."""

from __future__ import annotations

#: A report is up to a tick (5 s) older than its writing; larger moves are a suspend or a changed clock.
TOLERANCE_S = 6.0


class ZeroPoint:
    """Keeps the earliest zero seen: reports arrive late, never early; follows the clock when it jumps."""

    def __init__(self) -> None:
        self._zero_s: float | None = None

    def of(self, t_s: float, now_unix_s: float) -> float:
        """Seconds since 1970 at `t_s` = 0, for a report of `t_s` that arrived now."""
        zero_s = now_unix_s - t_s
        if self._zero_s is None or zero_s < self._zero_s or zero_s - self._zero_s > TOLERANCE_S:
            self._zero_s = zero_s
        return self._zero_s
