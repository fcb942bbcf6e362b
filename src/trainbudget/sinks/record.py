"""The run's record on disk: every fact as it was fed, and a summary. A kill at any moment loses at most what is in flight."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from trainbudget.engine.report import Report
from trainbudget.engine.summary import summary_json
from trainbudget.events import AnyEvent, Reading, Step, Tick
from trainbudget.findings import Finding
from trainbudget.trace import encode

#: A part is closed and compressed (about tenfold) at this size.
PART_BYTES = 8 * 1024**2
#: Facts that may be left out when the day's share is used up: the others tell the story without them.
_ORDINARY = (Reading, Step, Tick)


class TraceWriter:
    """Appends facts to `trace.jsonl`; full parts become `trace.N.jsonl.gz`.

    Args:
        directory: the run's own; it is made.
        max_bytes: on disk for one day; beyond it ordinary facts are left out and counted in `left_out`.
    """

    def __init__(
        self,
        directory: Path,
        *,
        max_bytes: float = 64 * 1024.0**2,
        part_bytes: int = PART_BYTES,
        unix_s: Callable[[], float] = time.time,
    ) -> None:
        self.directory = directory
        self.path = directory / "trace.jsonl"
        self.left_out = 0
        self._max_bytes, self._part_bytes, self._unix_s = max_bytes, part_bytes, unix_s
        self._day, self._day_bytes = int(unix_s() // 86400), 0.0
        self._size = 0
        directory.mkdir(parents=True, exist_ok=True)
        self._part = 1 + max((n for n in map(part_number, directory.glob("trace.*.jsonl*")) if n), default=0)
        if self.path.exists() and self.path.stat().st_size:
            self._retire()  # of an earlier attempt in the same directory
        self._file: IO[bytes] | None = open(self.path, "ab")  # noqa: SIM115 - closed by close()

    def write(self, fact: AnyEvent) -> None:
        """Append one fact; `flush` makes it survive a kill."""
        if self._file is None:
            return
        if isinstance(fact, _ORDINARY) and self._over():
            self.left_out += 1
            return
        line = encode(fact) + b"\n"
        self._file.write(line)
        self._size += len(line)

    def flush(self) -> None:
        if self._file is None:
            return
        self._file.flush()
        if self._size >= self._part_bytes:
            self._rotate()

    def close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            file.flush()
            with contextlib.suppress(OSError):
                os.fsync(file.fileno())
            file.close()

    def _over(self) -> bool:
        day = int(self._unix_s() // 86400)
        if day != self._day:
            self._day, self._day_bytes = day, 0.0
        # What is not compressed yet will be about a tenth of its size.
        return self._day_bytes + self._size / 10.0 > self._max_bytes

    def _rotate(self) -> None:
        assert self._file is not None
        self._file.close()
        self._retire()
        self._file = open(self.path, "ab")  # noqa: SIM115

    def _retire(self) -> None:
        """Move the current part aside, then compress it: a kill in between leaves one or the other, never neither."""
        plain = self.directory / f"trace.{self._part}.jsonl"
        os.replace(self.path, plain)
        packed, half = plain.with_suffix(".jsonl.gz"), plain.with_suffix(".jsonl.gz.tmp")
        with open(plain, "rb") as source, gzip.open(half, "wb", compresslevel=6) as target:
            shutil.copyfileobj(source, target, 1 << 18)
        os.replace(half, packed)
        plain.unlink()
        self._day_bytes += packed.stat().st_size
        self._part += 1
        self._size = 0


def part_number(path: Path) -> int | None:
    """N of `trace.N.jsonl` or `trace.N.jsonl.gz`."""
    pieces = path.name.split(".")
    return int(pieces[1]) if len(pieces) >= 3 and pieces[0] == "trace" and pieces[1].isdigit() else None


class RecordSink:
    """Keeps `summary.json` beside the trace up to date, every 30 s and at the end."""

    name = "record"

    def __init__(self, directory: Path, *, every_s: float = 30.0) -> None:
        self.directory = directory
        self._every_s, self._next_s = every_s, 0.0

    def write(self, report: Report, raised: Sequence[Finding], cleared: Sequence[Finding]) -> None:
        if report.outcome is None and not raised and report.t_s < self._next_s:
            return
        self._next_s = report.t_s + self._every_s
        write_summary(self.directory, report)

    def close(self) -> None:
        """The last report has been written by `write`."""


def write_summary(directory: Path, report: Report) -> None:
    """Write `summary.json` so that a reader never sees half of it."""
    half = directory / "summary.json.tmp"
    half.write_text(json.dumps(summary_json(report), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(half, directory / "summary.json")
