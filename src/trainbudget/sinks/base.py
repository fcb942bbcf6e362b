"""Sinks: where a report and its raised and cleared findings go. One that fails is counted and never stops the others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from trainbudget.engine.report import Report
from trainbudget.findings import Finding

_log = logging.getLogger("trainbudget")


class Sink(Protocol):
    """Called by one thread only, in order. `raised` and `cleared` are those since the previous call."""

    name: str

    def write(self, report: Report, raised: Sequence[Finding], cleared: Sequence[Finding]) -> None:
        """Take a report. May raise: the fan-out counts it."""
        ...

    def close(self) -> None:
        """Let go of everything; called once, also after failures."""
        ...


class FanOut:
    """Hands each report to every sink and isolates their failures; each kind is logged once.

    Attributes:
        errors: sink name -> how often it failed.
    """

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self.sinks = list(sinks)
        self.errors: dict[str, int] = {}

    def write(self, report: Report, raised: Sequence[Finding], cleared: Sequence[Finding]) -> None:
        for sink in self.sinks:
            self._guard(sink, lambda s=sink: s.write(report, raised, cleared))  # type: ignore[misc]

    def close(self) -> None:
        for sink in self.sinks:
            self._guard(sink, sink.close)

    def _guard(self, sink: Sink, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as err:  # noqa: BLE001 - a sink must never take the monitor down
            count = self.errors[sink.name] = self.errors.get(sink.name, 0) + 1
            if count == 1:
                with suppress(Exception):  # where the log itself is what failed
                    _log.warning(
                        "%s output failed (%s: %s); it is tried again, training is not affected",
                        sink.name,
                        type(err).__name__,
                        err,
                    )
