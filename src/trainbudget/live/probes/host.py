"""Host memory, CPU and disk through psutil, container limits included."""

from __future__ import annotations

import os
import platform
import sys
import time
from pathlib import Path

import psutil

from trainbudget.events import Host, HostReading
from trainbudget.gpu.protocol import ProcessInfo

_CGROUP = Path("/sys/fs/cgroup")
#: A cgroup limit above this is "no limit" (cgroup v1 writes a page-rounded 2**63).
_NO_LIMIT = 1 << 60


def host_of(*, root: Path = _CGROUP) -> Host:
    """What the machine is: platform, CPUs this process may use, memory it may use, whether a person types."""
    system = {"Linux": "linux", "Windows": "windows", "Darwin": "mac"}.get(platform.system(), "linux")
    if system == "linux" and "microsoft" in platform.release().lower():
        system = "wsl"
    return Host(
        platform=system,
        cpu_count=_cpu_count(),
        memory_limit_bytes=float(memory_limit_bytes(root)),
        interactive=hasattr(sys, "ps1") or "ipykernel" in sys.modules,
    )


def memory_limit_bytes(root: Path = _CGROUP) -> int:
    """The container's memory limit, else the machine's memory."""
    total = psutil.virtual_memory().total
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        value = _read_int(root / name)
        if value is not None and value < _NO_LIMIT:
            return min(value, total)
    return int(total)


def process_started_unix_s() -> float:
    return psutil.Process().create_time()


def process_lookup(run_started_unix_s: float):  # type: ignore[no-untyped-def]
    """A `ProcessLookup` for the NVML backend: is the process alive here, and older than this run."""

    def look_up(pid: int) -> ProcessInfo:
        try:
            process = psutil.Process(pid)
            return ProcessInfo(alive=True, started_before_run=process.create_time() < run_started_unix_s)
        except psutil.NoSuchProcess:
            return ProcessInfo(alive=False)
        except psutil.Error:
            return ProcessInfo()

    return look_up


class HostProbe:
    """Reads the host at most every 10 s. Rates need two looks, so the first fact has none."""

    def __init__(self, disk: Path | str, *, every_s: float = 10.0, root: Path = _CGROUP) -> None:
        self._process = psutil.Process()
        self._disk, self._every_s, self._root = Path(disk), every_s, root
        self._next_s = 0.0
        self._cpu: tuple[float, float, float] | None = None  # at, own seconds, children's seconds
        self._times = psutil.cpu_times()
        self._read: tuple[float, float] | None = None

    def read(self, t_s: float, *, workers: int | None) -> HostReading | None:
        """The host at `t_s`, or None while it is not due. What cannot be read is None."""
        if t_s < self._next_s:
            return None
        self._next_s = t_s + self._every_s
        children = self._children()
        own_ratio, children_ratio = self._cpu_ratios(children)
        busy, io_wait = self._machine()
        memory = self._process.memory_info()
        return HostReading(
            t_s=t_s,
            rss_bytes=float(memory.rss),
            children_rss_bytes=float(sum(rss for _, rss, _ in children)),
            memory_available_bytes=float(available_bytes(self._root)),
            cpu_ratio=busy,
            process_cpu_ratio=own_ratio,
            children_cpu_ratio=children_ratio,
            io_wait_ratio=io_wait,
            read_bytes_per_s=self._read_rate(),
            shm_free_bytes=_free(Path("/dev/shm")),  # noqa: S108 - its size is asked, nothing is written
            disk_free_bytes=_free(self._disk),
            loader_workers=workers,
        )

    def _children(self) -> list[tuple[int, int, float]]:
        out = []
        for child in self._process.children(recursive=True):
            try:
                times = child.cpu_times()
                out.append((child.pid, child.memory_info().rss, times.user + times.system))
            except psutil.Error:
                continue
        return out

    def _cpu_ratios(self, children: list[tuple[int, int, float]]) -> tuple[float | None, float | None]:
        times = self._process.cpu_times()
        now = (time.monotonic(), times.user + times.system, sum(c for _, _, c in children))
        before, self._cpu = self._cpu, now
        if before is None or now[0] <= before[0]:
            return None, None
        span = now[0] - before[0]
        # Children that ended took their seconds along: then the difference says nothing.
        children_ratio = (now[2] - before[2]) / span if now[2] >= before[2] else None
        return (now[1] - before[1]) / span, children_ratio

    def _machine(self) -> tuple[float | None, float | None]:
        before, self._times = self._times, psutil.cpu_times()
        spent = [b - a for a, b in zip(before, self._times, strict=True)]
        total = sum(spent)
        if total <= 0.0:
            return None, None
        idle = self._times.idle - before.idle
        io_wait = getattr(self._times, "iowait", 0.0) - getattr(before, "iowait", 0.0)
        return min(1.0, max(0.0, 1.0 - (idle + io_wait) / total)), max(0.0, io_wait / total)

    def _read_rate(self) -> float | None:
        try:
            count = float(self._process.io_counters().read_bytes)
        except (AttributeError, psutil.Error, OSError):
            return None
        now = (time.monotonic(), count)
        before, self._read = self._read, now
        if before is None or now[0] <= before[0]:
            return None
        return max(0.0, (now[1] - before[1]) / (now[0] - before[0]))


def available_bytes(root: Path = _CGROUP) -> int:
    """Memory that can still be had: the machine's, or less where a container's limit is nearer."""
    available = int(psutil.virtual_memory().available)
    for limit_name, used_name in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        limit, used = _read_int(root / limit_name), _read_int(root / used_name)
        if limit is not None and used is not None and limit < _NO_LIMIT:
            # The page cache counts as used but is given back on demand.
            cache = _inactive_file_bytes(root)
            available = min(available, max(0, limit - used + cache))
    return available


def _inactive_file_bytes(root: Path) -> int:
    for name in ("memory.stat", "memory/memory.stat"):
        try:
            lines = (root / name).read_text(encoding="ascii").splitlines()
        except (OSError, UnicodeDecodeError):
            continue
        for line in lines:
            key, _, value = line.partition(" ")
            if key in ("inactive_file", "total_inactive_file") and value.strip().isdigit():
                return int(value)
    return 0


def _cpu_count() -> int | None:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _read_int(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return int(text) if text.isdigit() else None


def _free(path: Path) -> float | None:
    try:
        return float(psutil.disk_usage(str(path)).free)
    except OSError:
        return None
