"""Our lines on the terminal: beside progress bars, and only where the application has set up no logging of its own."""

from __future__ import annotations

import logging
import sys

_NAME = "trainbudget-console"


class ConsoleHandler(logging.Handler):
    """Writes to stderr without taking anybody's lock.

    A progress bar's lock may be held for ever by a thread that died in it, and `logging.shutdown` waits for handler locks
    at exit: with either, a stuck terminal would keep the process alive. Only the feeder writes here, so none is needed.
    """

    def createLock(self) -> None:
        self.lock = None

    def emit(self, record: logging.LogRecord) -> None:
        stream = sys.stderr
        if stream is None:
            return
        try:
            stream.write(_clear_line(stream) + self.format(record) + "\n")
            stream.flush()
        except (OSError, ValueError):
            return  # the terminal is gone: nobody to tell


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
