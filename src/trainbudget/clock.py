"""Time as an argument: everything that waits or stamps takes a `Clock`, so that tests need no sleep."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic seconds, plus the wait that belongs to them."""

    def now_s(self) -> float:
        """Monotonic seconds; only differences mean anything."""
        ...

    def unix_s(self) -> float:
        """Seconds since 1970, UTC."""
        ...

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Wait until `event` is set or `timeout_s` have passed; true when it is set."""
        ...


class SystemClock:
    """The machine's clock."""

    now_s = staticmethod(time.monotonic)
    unix_s = staticmethod(time.time)

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(timeout_s)


class ManualClock:
    """A clock that moves only when it is told to; waiting moves it."""

    def __init__(self, start_s: float = 0.0, unix_start_s: float = 1_700_000_000.0) -> None:
        self._now_s = start_s
        self._offset_s = unix_start_s - start_s

    def now_s(self) -> float:
        return self._now_s

    def unix_s(self) -> float:
        return self._now_s + self._offset_s

    def advance(self, seconds: float) -> None:
        self._now_s += seconds

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        if not event.is_set():
            self.advance(timeout_s)
        return event.is_set()
