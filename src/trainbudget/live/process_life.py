"""A monitor at the ends of its process's life: its exit, its forks, and copies of it in processes of others."""

from __future__ import annotations

import atexit
import functools
import logging
import os
import sys
import weakref
from typing import TYPE_CHECKING

from trainbudget.live.console import let_go_of_stuck_handlers

if TYPE_CHECKING:
    from trainbudget.monitor.life import Life


def follow(monitor: Life) -> None:
    """See that a started monitor is closed when the process ends, and does nothing in forked children."""
    reference, before = weakref.ref(monitor), last_error()
    atexit.register(_close_at_exit, reference, before)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=functools.partial(_forget_in_child, reference))


def in_loader_worker() -> bool:
    """Whether this process is a worker of a torch `DataLoader`, however it was started."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


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
        let_go_of_stuck_handlers(logging.getLogger("trainbudget"))


def _forget_in_child(reference: weakref.ref[Life]) -> None:
    """A forked child (a loader worker) has none of our threads: its copy does nothing for ever."""
    monitor = reference()
    if monitor is not None:
        monitor._forget()
