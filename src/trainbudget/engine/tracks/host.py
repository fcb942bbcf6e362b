"""The host: memory, CPU, disk; and the other ranks' last words."""

from __future__ import annotations

from collections import deque
from typing import Any

from trainbudget.engine.tracks.series import Series
from trainbudget.events import HostReading, Rank

#: Words of a rank that are compared with the others': four minutes at one in ten seconds.
WORDS = 24


class HostTrack:
    """Newest host reading, a window of CPU load, and bounded series for what can run out."""

    def __init__(self) -> None:
        self.last: HostReading | None = None
        self.window: deque[HostReading] = deque(maxlen=360)
        self.available = Series()  # memory_available_bytes
        self.disk_free = Series()  # disk_free_bytes
        self.total_rss = Series()  # own and children's resident bytes

    def on_host(self, event: HostReading) -> None:
        self.last = event
        self.window.append(event)
        if event.memory_available_bytes is not None:
            self.available.add(event.t_s, None, event.memory_available_bytes)
        if event.disk_free_bytes is not None:
            self.disk_free.add(event.t_s, None, event.disk_free_bytes)
        if event.rss_bytes is not None:
            self.total_rss.add(event.t_s, None, event.rss_bytes + (event.children_rss_bytes or 0.0))

    def cpu_ratio(self, since_s: float) -> float | None:
        """Mean load of the whole machine (0-1) after `since_s`, or None."""
        values = [h.cpu_ratio for h in self.window if h.t_s >= since_s and h.cpu_ratio is not None]
        return sum(values) / len(values) if values else None


class RankTrack:
    """Another rank: its newest word and a window of them."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.last: Rank | None = None
        self.window: deque[Rank] = deque(maxlen=120)
        self.telling: deque[Rank] = deque(maxlen=WORDS)  # the newest that say something new
        self.seen: tuple[Rank | None, float, Any] | None = None  # last word, beginning of the session, what was made of them

    def on_rank(self, event: Rank) -> None:
        self.last = event
        self.window.append(event)
        # A word without a new step says nothing new: long steps, or a rank that stands still and whose clock sleeps.
        if event.step and is_running(event):
            newest = self.telling[-1].step or 0 if self.telling else 0
            if event.step < newest:
                self.telling.clear()  # another attempt
            if event.step != newest:
                self.telling.append(event)


def is_running(word: Rank) -> bool:
    return word.state is None or word.state == "running"
