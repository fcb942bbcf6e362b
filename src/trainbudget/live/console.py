"""Our lines on the terminal: beside progress bars, and only where the application has set up no logging of its own."""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import TextIO

_NAME = "trainbudget-console"


class ConsoleHandler(logging.Handler):
    """Writes to stderr without taking anybody's lock.

    A progress bar's lock may be held for ever by a thread that died in it, `logging.shutdown` waits for handler locks at
    exit, and the interpreter waits for the stream's own: with any of them, a stuck terminal would keep the process alive.
    Only daemon threads of ours write here, a line in one call, so none is needed.
    """

    def createLock(self) -> None:
        self.lock = None

    def emit(self, record: logging.LogRecord) -> None:
        stream = sys.stderr
        if stream is None:
            return
        try:
            _write(stream, _clear_line(stream) + self.format(record) + "\n")
        except (OSError, ValueError):
            return  # the terminal is gone: nobody to tell


def _write(stream: TextIO, text: str) -> None:
    """Past the stream's buffer and its lock where the stream is the process's own and nobody listens in on it."""
    if stream is sys.__stderr__ and "write" not in getattr(stream, "__dict__", {}):
        rest = text.encode(stream.encoding or "utf-8", "backslashreplace")
        while rest:
            rest = rest[os.write(stream.fileno(), rest) :]
        return
    stream.write(text)
    stream.flush()


def _clear_line(stream: object) -> str:
    """What takes a progress bar's line away; the bar draws itself again."""
    tqdm = sys.modules.get("tqdm")
    if tqdm is None or not getattr(getattr(tqdm, "tqdm", None), "_instances", None):
        return ""
    is_terminal = getattr(stream, "isatty", lambda: False)()
    return "\r\x1b[K" if is_terminal else "\n"


class _Format(logging.Formatter):
    """`WARNING trainbudget: ...`; information stands without its level."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        head = "trainbudget: " if record.levelno < logging.WARNING else f"{record.levelname} trainbudget: "
        return head + text


def add_handler(logger: logging.Logger) -> None:
    """Make sure that somebody shows our lines. An application with handlers of its own keeps them alone."""
    if any(h.get_name() == _NAME for h in logger.handlers):
        return
    if logger.handlers or logging.getLogger().handlers:
        return
    handler = ConsoleHandler()
    handler.set_name(_NAME)
    handler.setFormatter(_Format("%(message)s"))
    logger.addHandler(handler)
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    logger.propagate = False


def let_go_of_stuck_handlers(logger: logging.Logger) -> None:
    """At process end, when a thread of ours is stuck inside a handler: `logging.shutdown` would wait for it for ever.

    The handlers that somebody holds get a new lock and are taken off the list of those that are flushed at exit. What the
    stuck one holds back is lost, and the process ends.
    """
    current: logging.Logger | None = logger
    handlers: list[logging.Handler] = []
    while current is not None:
        handlers += current.handlers
        current = current.parent if current.propagate else None
    stuck = [h for h in handlers if h.lock is not None and not _free(h.lock)]
    for handler in stuck:
        handler.lock = threading.RLock()
    flushed = getattr(logging, "_handlerList", None)
    if stuck and isinstance(flushed, list):
        flushed[:] = [reference for reference in flushed if reference() not in stuck]


def _free(lock: threading.RLock) -> bool:
    if not lock.acquire(blocking=False):
        return False
    lock.release()
    return True
