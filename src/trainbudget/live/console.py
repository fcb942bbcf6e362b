"""Our lines on the terminal: beside progress bars, and only where the application has set up no logging of its own."""

from __future__ import annotations

import logging
import sys

_NAME = "trainbudget-console"


class ConsoleHandler(logging.Handler):
    """Writes to stderr, above a progress bar where tqdm draws one."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
            tqdm = sys.modules.get("tqdm")
            if tqdm is not None and getattr(tqdm.tqdm, "_instances", None):
                tqdm.tqdm.write(text, file=sys.stderr)
            else:
                sys.stderr.write(text + "\n")
                sys.stderr.flush()
        except Exception:  # noqa: BLE001 - logging's own convention
            self.handleError(record)


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
