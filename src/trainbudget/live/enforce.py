"""Stopping a run that exceeds its budget, only where the user asked for it."""

from __future__ import annotations

import logging

from trainbudget.config import Settings
from trainbudget.engine.report import Report
from trainbudget.wording.numbers import duration, money, size

_log = logging.getLogger("trainbudget")


class Enforcer:
    """Looks at each report; answers with the reason once a stop is due. Adapters stop the framework's own way."""

    def __init__(self, settings: Settings, world_size: int) -> None:
        self._settings, self._world_size = settings, world_size
        self._said = False

    def look(self, report: Report) -> str | None:
        """The reason to stop now, or None. `dry_run` says it and never stops; a lone rank of several never stops."""
        if self._settings.on_exceed == "warn" or self._said or report.outcome is not None:
            return None
        reason = self._reason(report)
        if reason is None:
            return None
        self._said = True
        if self._settings.on_exceed == "dry_run":
            _log.warning("%s: the run would be stopped now (on_exceed='dry_run')", reason)
            return None
        if self._world_size > 1:
            _log.warning("%s: not stopped, a single rank that leaves would hang the other %d", reason, self._world_size - 1)
            return None
        _log.warning("%s: stopping the run at the next step, with a checkpoint", reason)
        return reason

    def _reason(self, report: Report) -> str | None:
        budget, stop_on = report.budget, self._settings.stop_on
        cost = budget.get("cost")
        if "cost" in stop_on and cost is not None and report.cost is not None and report.cost >= cost.value:
            return f"{money(report.cost, report.currency)} of {money(cost.value, report.currency)} spent"
        run_time = budget.get("run_time_s")
        if "run_time" in stop_on and run_time is not None and report.wall_s >= run_time.value:
            return f"{duration(report.wall_s)} of {duration(run_time.value)} used"
        memory = budget.get("memory_peak_bytes")
        if "memory" in stop_on and memory is not None and memory.source == "given":
            peak = max((g.peak_used_bytes or 0.0 for g in report.gpus if g.owned), default=0.0)
            if peak > memory.value:
                return f"{size(peak)} of {size(memory.value)} memory used"
        return None
