"""Ranks exchange gradients while the GPU has nothing else to do."""

from __future__ import annotations

from collections.abc import Iterable

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.findings import CodeRecord, Route, Severity, Threshold
from trainbudget.quantities import duration, percent


class CommunicationBound(BaseDetector):
    """Communication that computation does not hide takes much of the step."""

    record = CodeRecord(
        code="communication_bound",
        family="waiting",
        severity=Severity.INFO,
        title="Communication is not hidden",
        condition="Exposed communication takes 20 % of the step or more over 100 steps (warning from 40 % on).",
        silent="Where it is not measured; with one rank; while one rank holds the others up (straggler): then the time is a "
        "wait.",
        evidence={
            "communication_ratio": "median share of the step",
            "communication_s": "seconds of a step",
            "step_time_s": "median step",
            "world_size": "ranks",
        },
        thresholds=(
            Threshold(name="info_ratio", default=0.20, unit="ratio", reason="scaling efficiency below 80 % (lever L24)"),
            Threshold(
                name="warning_ratio",
                default=0.40,
                unit="ratio",
                reason="with half as many GPUs the run would cost almost half",
            ),
        ),
        levers=("L24", "L25"),
        route=Route.TICKET,
        runbook="Check the link (pcie_degraded, the topology), then buckets and find_unused_parameters; accumulate more "
        "micro-batches between exchanges, or use fewer GPUs.",
    )
    every_s = 30.0

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        if timeline.world_size < 2 and len(timeline.owned) < 2:
            return
        last = timeline.last_step
        # The newest step alone, before the window is read: exposed communication is much the same in every step.
        least = 0.75 * view.limit(self.record, "info_ratio")
        if last is None or not last.event.communication_s or last.event.communication_s < least * last.duration_s * last.count:
            return
        shares = timeline.step_shares.current()
        if shares is None or shares.communication_ratio is None:
            return
        if not timeline.run.training or "straggler" in view.raised:
            return
        ratio = shares.communication_ratio
        if ratio < view.limit(self.record, "info_ratio"):
            return
        yield Signal(
            "communication_bound",
            severity=Severity.WARNING if ratio >= view.limit(self.record, "warning_ratio") else Severity.INFO,
            summary=f"exchange between ranks takes {percent(ratio)} of each step ({duration(ratio * shares.step_s)}), unhidden",
            evidence={
                "communication_ratio": round(ratio, 3),
                "communication_s": round(ratio * shares.step_s, 4),
                "step_time_s": shares.step_s,
                "world_size": timeline.world_size,
            },
        )
