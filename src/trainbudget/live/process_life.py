"""A monitor at the ends of its process's life: its exit, its forks, and copies of it in processes of others."""

from __future__ import annotations

import atexit
import functools
import logging
import multiprocessing
import os
import sys
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainbudget.live.console import let_go_of_stuck_handlers
from trainbudget.live.identity import Ranks
from trainbudget.live.probes.process_group import own_ranks

if TYPE_CHECKING:
    from trainbudget.monitor.life import Life

_log = logging.getLogger("trainbudget")


def follow(monitor: Life) -> None:
    """See that a started monitor is closed when the process ends, and does nothing in forked children."""
    reference, before = weakref.ref(monitor), last_error()
    atexit.register(_close_at_exit, reference, before)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=functools.partial(_forget_in_child, reference))


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """Where a monitor runs; its copies take this along."""

    pid: int
    ranks: Ranks


def in_worker(origin: Watched | None) -> bool:
    """Whether this process only works for the one that trains: then training is watched there.

    A worker of a torch `DataLoader`, however it was started; or a process that multiprocessing has started from the one
    where the monitor that ours is a copy of runs (`origin`), unless it is another rank of the job.
    """
    data = sys.modules.get("torch.utils.data")
    if data is not None and data.get_worker_info() is not None:
        return True
    parent = multiprocessing.parent_process()
    if origin is None or parent is None or parent.pid != origin.pid:
        return False
    return own_ranks() == origin.ranks


def tell_of_worker(pid: int) -> None:
    """Say once, on a thread of its own, that nothing is watched here."""
    text = "this worker process has a copy of the monitor of process %d, which watches the run: nothing is watched here"
    threading.Thread(target=_log.info, args=(text, pid), name="trainbudget-note", daemon=True).start()


def last_error() -> BaseException | None:
    """The exception that the interpreter has printed last, as it does with the one that ends a script."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return error if isinstance(error, BaseException) else None


def _close_at_exit(reference: weakref.ref[Life], before: BaseException | None) -> None:
    """A process that ends without `close`: failed when an exception ended it, else as training was left last."""
    monitor = reference()
    if monitor is None or monitor._feeder is None:
        return
    if not monitor._closed:
        error = last_error()
        if error is not None and error is not before:
            monitor.exception(error)
        monitor.close()
    if monitor._feeder.thread.is_alive():
        let_go_of_stuck_handlers(_log)


def _forget_in_child(reference: weakref.ref[Life]) -> None:
    """A forked child (a loader worker) has none of our threads: its copy does nothing for ever."""
    monitor = reference()
    if monitor is not None:
        monitor._forget()
