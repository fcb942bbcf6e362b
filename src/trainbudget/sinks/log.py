"""Findings in the training log: once when raised, once when cleared; and the closing table."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from trainbudget.engine.report import Report
from trainbudget.findings import Finding, Severity
from trainbudget.wording.closing import closing_table
from trainbudget.wording.finding import finding_lines
from trainbudget.wording.numbers import duration

_LEVELS = {Severity.INFO: logging.INFO, Severity.WARNING: logging.WARNING, Severity.CRITICAL: logging.CRITICAL}


class LogSink:
    """Writes through a `logging.Logger`; `closing` prints the last table (None = through the logger too)."""

    name = "log"

    def __init__(self, logger: logging.Logger, *, closing: Callable[[str], None] | None = None) -> None:
        self._logger = logger
        self._closing = closing or (lambda text: logger.info("%s", text))
        self._closed = False

    def write(self, report: Report, raised: Sequence[Finding], cleared: Sequence[Finding]) -> None:
        for finding in raised:
            self._logger.log(_LEVELS[finding.severity], "%s", "\n".join(finding_lines(finding, report)))
        for finding in cleared:
            if finding.cleared_s is not None and finding.severity is not Severity.INFO:
                lasted = duration(finding.cleared_s - finding.raised_s)
                self._logger.info("over after %s: %s   [%s]", lasted, finding.summary or finding.code, finding.name)
        if report.outcome is not None and not self._closed:
            self._closed = True
            self._closing(closing_table(report))

    def close(self) -> None:
        """Nothing is held."""
