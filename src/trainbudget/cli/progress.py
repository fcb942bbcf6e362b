"""What a long command is doing, on stderr: one live line on a terminal, else a plain line every few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TextIO

#: Off a terminal: a log needs a sign of life, not a line for each of dozens of traces.
PLAIN_LINES_EVERY_S = 5.0


@dataclass(slots=True)
class Progress:
    """Called with each new thing that is being done; counts them and the seconds since the first."""

    stream: TextIO
    now: Callable[[], float] = time.monotonic
    _started_s: float | None = field(default=None, init=False)
    _told_s: float = field(default=0.0, init=False)
    _count: int = field(default=0, init=False)

    def __call__(self, text: str) -> None:
        now = self.now()
        if self._started_s is None:
            self._started_s = self._told_s = now
        self._count += 1
        line = f"{text} ... ({self._count}, {now - self._started_s:.0f} s)"
        if self.stream.isatty():
            print(f"\r\033[K{line}", end="", file=self.stream, flush=True)
        elif now - self._told_s >= PLAIN_LINES_EVERY_S:
            self._told_s = now
            print(f"trainbudget plan: {line}", file=self.stream, flush=True)

    def done(self) -> None:
        """Take the live line away."""
        if self.stream.isatty():
            print("\r\033[K", end="", file=self.stream, flush=True)
