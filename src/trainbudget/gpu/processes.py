"""Who holds memory on a device: raw rows of a driver turned into `Process` facts, without claiming what cannot be known."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from trainbudget.events import Process
from trainbudget.gpu.protocol import ProcessInfo, ProcessLookup

#: Inode of the host's first PID namespace (PROC_PID_INIT_INO in the kernel's include/linux/proc_ns.h).
_HOST_PID_NAMESPACE = "pid:[4026531836]"


def pids_are_the_hosts(link: str | Path = "/proc/self/ns/pid") -> bool | None:
    """Whether this process counts PIDs as the host does; None where the system does not say.

    Drivers give the host's PIDs, so in a container's own namespace they mean nothing, or worse: another process.
    """
    try:
        return str(Path(link).readlink()) == _HOST_PID_NAMESPACE
    except OSError:
        return None


def processes_of(
    rows: Iterable[tuple[int, float | None]],
    *,
    own_pid: int,
    memory_total_bytes: float | None,
    process_info: ProcessLookup | None,
    pids_trusted: bool,
) -> list[Process]:
    """One fact per process id, largest first.

    Rows that cannot be true are dropped: pid 0, and more memory than the device has (seen where the binding's struct is
    not the driver's). A process that computes and draws has two rows; the larger one holds for both. Without trusted
    PIDs `own`, `alive` and `started_before_run` stay None.
    """
    held: dict[int, float | None] = {}
    for pid, memory_bytes in rows:
        if pid <= 0 or (memory_bytes is not None and memory_total_bytes is not None and memory_bytes > memory_total_bytes):
            continue
        known = held.get(pid)
        held[pid] = memory_bytes if known is None else known if memory_bytes is None else max(known, memory_bytes)
    facts = [
        _fact(pid, memory_bytes, own_pid, process_info if pids_trusted else None, pids_trusted)
        for pid, memory_bytes in held.items()
    ]
    return sorted(facts, key=lambda fact: (-(fact.memory_bytes or 0.0), fact.pid or 0))


def _fact(pid: int, memory_bytes: float | None, own_pid: int, process_info: ProcessLookup | None, pids_trusted: bool) -> Process:
    if not pids_trusted:
        return Process(pid=pid, memory_bytes=memory_bytes)
    own = pid == own_pid
    if own:
        return Process(pid=pid, memory_bytes=memory_bytes, own=True, alive=True, started_before_run=False)
    info = process_info(pid) if process_info else ProcessInfo()
    return Process(pid=pid, memory_bytes=memory_bytes, own=False, alive=info.alive, started_before_run=info.started_before_run)
