"""node_exporter's textfile collector: one file a rank, replaced whole, removed when the run ends well."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from trainbudget.catalog import rank_label, run_label
from trainbudget.clock import Clock, SystemClock
from trainbudget.engine.report import Report
from trainbudget.findings import Finding
from trainbudget.sinks.push import CLEAN, PERIOD_S, exposition
from trainbudget.sinks.zero import ZeroPoint

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


class TextfileSink:
    """Writes `trainbudget_RUN_RANK.prom` into the collector's folder.

    A reader never sees half a file: it is written beside and moved over the old one.
    """

    name = "textfile"

    def __init__(self, folder: str | Path, *, period_s: float = PERIOD_S, clock: Clock | None = None) -> None:
        self.folder = Path(folder)
        self.path: Path | None = None
        self._period_s = period_s
        self._clock = clock or SystemClock()
        self._zero = ZeroPoint()
        self._next_s = 0.0
        self._outcome: str | None = None

    def write(self, report: Report, raised: Sequence[Finding], cleared: Sequence[Finding]) -> None:
        now_s = self._clock.now_s()
        ended = report.outcome is not None and self._outcome is None
        if now_s < self._next_s and not raised and not cleared and not ended:
            return
        self._next_s = now_s + self._period_s
        self._outcome = report.outcome
        safe = _UNSAFE.sub("_", run_label(report.header))
        self.path = self.folder / f"trainbudget_{safe}_{rank_label(report.header)}.prom"
        beside = self.path.with_suffix(f".{os.getpid()}.tmp")  # the collector reads *.prom only
        beside.write_bytes(exposition(report, self._zero, self._clock.unix_s()))
        beside.chmod(0o644)
        beside.replace(self.path)

    def close(self) -> None:
        if self.path is not None and self._outcome in CLEAN:
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()
