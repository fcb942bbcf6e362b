"""Memory: over budget, and on its way to the limit."""

from __future__ import annotations

from collections.abc import Iterable

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.findings import CodeRecord, Route, Severity, Threshold


class MemoryOverBudget(BaseDetector):
    """The peak exceeds what was planned."""

    record = CodeRecord(
        code="memory_over_budget",
        family="memory",
        severity=Severity.WARNING,
        title="Peak memory exceeds its budget",
        condition="The highest allocated (else used) memory exceeds the budget by 10 %, its interval included.",
        silent="Without a budget for memory.",
        evidence={"peak_bytes": "highest so far", "budget_bytes": "planned", "limit_bytes": "may be held"},
        thresholds=(Threshold(name="over_ratio", default=0.10, unit="ratio", reason="a traced prediction is right to 3-5 %"),),
        route=Route.WEEKLY,
        runbook="See which category grew (plan) and whether a longer batch came.",
    )

    def check(self, view: View) -> Iterable[Signal]:
        budget = view.timeline.budget.get("memory_peak_bytes")
        if budget is None:
            return
        for device in view.timeline.owned:
            peak = device.peak_reserved_bytes or device.peak_used_bytes
            high = max(budget.high or 0.0, budget.value * (1.0 + view.limit(self.record, "over_ratio")))
            if peak is not None and peak > high:
                yield Signal(
                    "memory_over_budget",
                    gpu=device.index,
                    summary=f"peak {peak / 2**30:.1f} GiB, {budget.value / 2**30:.1f} GiB planned",
                    evidence={"peak_bytes": peak, "budget_bytes": budget.value, "limit_bytes": device.limit_bytes},
                )


DETECTORS = (MemoryOverBudget,)
