"""What the monitor costs and what went wrong in it, counted where it happens and told from the feeder thread."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field

#: Messages that wait for the feeder; more at once and the first ones tell the story.
MOST_NOTES = 64


@dataclass(slots=True)
class Counters:
    """Written by several threads, each its own fields. Nothing here logs: a log handler may be stuck."""

    hook_s: float = 0.0
    feed_s: float = 0.0
    errors: dict[str, int] = field(default_factory=dict)
    notes: deque[tuple[int, str]] = field(default_factory=lambda: deque(maxlen=MOST_NOTES))

    def fault(self, where: str, err: BaseException) -> None:
        """Count a fault of ours; the first of each kind gets a line."""
        count = self.errors[where] = self.errors.get(where, 0) + 1
        if count == 1:
            self.note(logging.WARNING, f"monitoring fault in {where} ({type(err).__name__}: {err}); training is not affected")

    def note(self, level: int, text: str) -> None:
        """A line for the log, written by the feeder."""
        self.notes.append((level, text))
