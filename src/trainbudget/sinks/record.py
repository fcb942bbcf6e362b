"""The run's record on disk: every fact as it was fed, and a summary. A kill at any moment loses at most what is in flight."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from io import FileIO
from pathlib import Path

from trainbudget.engine.report import Report
from trainbudget.engine.summary import summary_json
from trainbudget.events import AnyEvent, Reading, Step, Tick
from trainbudget.findings import Finding
from trainbudget.trace import encode

try:
    import fcntl
except ImportError:  # pragma: no cover - not on Windows
    fcntl = None  # type: ignore[assignment]

#: A part is closed and compressed (about tenfold) at this size.
PART_BYTES = 8 * 1024**2
#: Facts that a disk refuses are kept in memory up to this size: minutes of a usual run.
_KEPT_BYTES = 1024**2
#: Facts that may be left out when the day's share is used up: the others tell the story without them.
_ORDINARY = (Reading, Step, Tick)


class RecordInUse(OSError):
    """Another live run writes in this directory."""


class TraceWriter:
    """Appends facts to `trace.jsonl`; full parts become `trace.N.jsonl.gz`.

    Facts are collected here and handed to the system by `flush` in one call: a kill tears no line, and a forked child has
    nothing to write a second time. What a full disk refuses is kept (up to a bound) and tried again.

    Args:
        directory: the run's own; it is made.
        max_bytes: on disk for one day; beyond it ordinary facts are left out and counted in `left_out`.

    Raises:
        OSError: the directory cannot be made or written; `RecordInUse` when another live run writes there.
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
        self._pending = bytearray()
        self._head = b""
        self._closed = False
        self._file: FileIO | None = None
        self._open()
        self._part = 1 + max((n for n in map(part_number, directory.glob("trace.*.jsonl*")) if n), default=0)
        if self._size:
            self._rotate()  # of an earlier attempt in the same directory

    def write(self, fact: AnyEvent) -> None:
        """Take one fact; `flush` makes it survive a kill."""
        if self._closed:
            return
        if len(self._pending) > _KEPT_BYTES or (isinstance(fact, _ORDINARY) and self._over()):
            self.left_out += 1
            return
        line = encode(fact) + b"\n"
        if not self._head:
            self._head = line
        self._pending += line

    def flush(self) -> None:
        """Hand everything to the system.

        Raises:
            OSError: it did not take everything; the rest is tried again by the next call.
        """
        if self._closed or not self._pending:
            return
        if self._file is None or not self.path.exists():
            self._open()  # somebody removed it: what comes from now on is still worth keeping
            if not self._size and not self._pending.startswith(self._head):
                self._pending[:0] = self._head
        while self._pending:
            taken = self._file.write(self._pending)  # type: ignore[union-attr]
            del self._pending[:taken]
            self._size += taken
        if self._size >= self._part_bytes:
            self._rotate()

    def close(self) -> None:
        """Write what is left, to the disk itself. Later calls do nothing."""
        if self._closed:
            return
        try:
            self.flush()
        finally:
            self._closed = True
            self._let_go(sync=True)

    def abandon(self) -> None:
        """In a forked child: the file is the parent's, nothing is written any more."""
        self._closed = True
        self._pending.clear()
        self._let_go(sync=False)

    def _open(self) -> None:
        self._let_go(sync=False)
        self.directory.mkdir(parents=True, exist_ok=True)
        file = open(self.path, "ab", buffering=0)  # noqa: SIM115 - closed by _let_go
        try:
            _lock(file)
            self._size = os.fstat(file.fileno()).st_size
        except OSError:
            file.close()
            raise
        self._file = file

    def _let_go(self, *, sync: bool) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        with contextlib.suppress(OSError):
            if sync:
                os.fsync(file.fileno())
        with contextlib.suppress(OSError):
            file.close()

    def _over(self) -> bool:
        day = int(self._unix_s() // 86400)
        if day != self._day:
            self._day, self._day_bytes = day, 0.0
        # What is not compressed yet will be about a tenth of its size.
        return self._day_bytes + (self._size + len(self._pending)) / 10.0 > self._max_bytes

    def _rotate(self) -> None:
        """Start a new part, then compress the old one: a kill in between leaves one or the other, never neither."""
        plain = self.directory / f"trace.{self._part}.jsonl"
        os.replace(self.path, plain)
        self._part += 1
        self._open()
        packed, half = plain.with_suffix(".jsonl.gz"), plain.with_suffix(".jsonl.gz.tmp")
        with open(plain, "rb") as source, gzip.open(half, "wb", compresslevel=6) as target:
            shutil.copyfileobj(source, target, 1 << 18)
        os.replace(half, packed)
        plain.unlink()
        self._day_bytes += packed.stat().st_size


def _lock(file: FileIO) -> None:
    """Keep a second run out of the directory; the lock ends with the process. No lock where the system has none."""
    if fcntl is None:
        return
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RecordInUse(f"{file.name}: another run writes there") from None
    except OSError:
        return  # some network file systems


def in_use(directory: Path) -> bool | None:
    """Whether a live run of this machine writes there; None = the system cannot say."""
    if fcntl is None:
        return None
    try:
        with open(directory / "trace.jsonl", "rb") as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False


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
    text = json.dumps(summary_json(report), indent=1, allow_nan=False) + "\n"
    try:
        half.write_text(text, encoding="utf-8")
        os.replace(half, directory / "summary.json")
    except OSError:
        with contextlib.suppress(OSError):  # a full disk has left us an empty file
            half.unlink(missing_ok=True)
        raise
