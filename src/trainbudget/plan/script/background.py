"""A process that plans while another one trains: it takes only what is left over, and never outlives the training."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

import psutil

LEAST_PRIORITY = 19
#: Linux ends the process with the highest score when memory runs out; 1000 is "this one first" (proc(5)).
_ENDED_FIRST = "1000"


def put_back(pid: int) -> None:
    """Give a process of ours that leads a session the lowest priority, at once: before it has begun to load anything."""
    with contextlib.suppress(AttributeError, OSError):
        os.setpriority(os.PRIO_PROCESS, pid, LEAST_PRIORITY)
    # A session of its own has a share of its own, whatever the priority inside it (sched(7), autogroup).
    _write(f"/proc/{pid}/autogroup", str(LEAST_PRIORITY))


def step_back() -> None:
    """Give up disk and memory too to everybody else, and have no other share of the CPU; what the platform lacks is left."""
    _write("/proc/self/oom_score_adj", _ENDED_FIRST)
    if os.name == "posix" and os.getsid(0) == os.getpid():
        put_back(os.getpid())  # somebody else's session is left alone: the training itself may be in it
    else:
        with contextlib.suppress(AttributeError, OSError):
            os.setpriority(os.PRIO_PROCESS, 0, LEAST_PRIORITY)
    with contextlib.suppress(AttributeError, OSError, ValueError, psutil.Error):
        psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)


def _write(path: str, text: str) -> None:
    with contextlib.suppress(OSError):
        Path(path).write_text(text, encoding="ascii")


def end_with(parent: int, *, every_s: float = 1.0) -> None:
    """Watch for the end of `parent` on a thread of its own: then everything in our process group ends."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(every_s)
        if hasattr(os, "killpg"):
            os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, name="trainbudget-parent", daemon=True).start()
