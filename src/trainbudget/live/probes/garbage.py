"""Pauses of Python's garbage collector, as facts; only pauses that a step can feel."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

#: Shorter pauses drown in a step's own noise.
WORTH_TELLING_S = 0.005


class GarbageProbe:
    """Adds itself to `gc.callbacks` on `start` and removes itself on `stop`."""

    def __init__(self, tell: Callable[[int, float], None]) -> None:
        self._tell = tell
        self._began_s = 0.0

    def start(self) -> None:
        """Begin to listen. Idempotent."""
        if self._on_gc not in gc.callbacks:
            gc.callbacks.append(self._on_gc)

    def stop(self) -> None:
        """Leave the collector alone again. Idempotent."""
        if self._on_gc in gc.callbacks:
            gc.callbacks.remove(self._on_gc)

    def _on_gc(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._began_s = time.perf_counter()
            return
        lasted_s = time.perf_counter() - self._began_s
        if lasted_s >= WORTH_TELLING_S:
            with suppress(Exception):  # whatever it is, the collector's caller is somebody else
                self._tell(int(info.get("generation", -1)), lasted_s)
