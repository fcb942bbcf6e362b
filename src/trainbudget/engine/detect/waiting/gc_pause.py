"""Python's garbage collector stops the training thread."""

from __future__ import annotations

from collections.abc import Iterable

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.findings import CodeRecord, Route, Severity, Threshold
from trainbudget.quantities import duration, percent

#: Pauses are judged over this time; a few steps at least.
WINDOW_S = 300.0
#: Fewer collections than this are no habit.
LEAST_COUNT = 3


class GcPause(BaseDetector):
    """Collections take a visible share of the time."""

    record = CodeRecord(
        code="gc_pause",
        family="waiting",
        severity=Severity.INFO,
        title="Garbage collection stops training",
        condition="Over five minutes of training three or more collections take 2 % of the time or more (warning above 10 %).",
        silent="Where collections are not reported; in start-up; for a single long one.",
        evidence={
            "ratio": "share of the time in collections",
            "count": "collections in five minutes",
            "longest_s": "the longest of them",
            "step_time_s": "median step",
        },
        thresholds=(
            Threshold(
                name="info_ratio", default=0.02, unit="ratio", reason="a full collection takes 0.1-1 s: once a minute is less"
            ),
            Threshold(name="warning_ratio", default=0.10, unit="ratio", reason="a tenth of the money for one line of code"),
        ),
        levers=("L45",),
        route=Route.WEEKLY,
        runbook="Call gc.freeze() after the model is built, or gc.disable() and a gc.collect() every few hundred steps at the "
        "same step on all ranks: ranks that collect at different steps wait for one another.",
    )
    every_s = 30.0
    clear_s = 120.0

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        pauses = timeline.pauses
        if not pauses.recent or timeline.now_s - pauses.recent[-1][0] > WINDOW_S or not timeline.run.training:
            return
        session = timeline.run.session
        if session is None or session.first_step_end_s is None:
            return
        since_s = max(timeline.now_s - WINDOW_S, session.first_step_end_s)
        whole_s = timeline.since(since_s)
        if whole_s < 0.2 * WINDOW_S:
            return
        seconds, count, longest_s = pauses.since(since_s)
        ratio = seconds / whole_s
        if count < LEAST_COUNT or ratio < view.limit(self.record, "info_ratio"):
            return
        shares = timeline.step_shares.current()
        if shares is None:
            return
        yield Signal(
            "gc_pause",
            severity=Severity.WARNING if ratio >= view.limit(self.record, "warning_ratio") else Severity.INFO,
            summary=f"garbage collection takes {percent(ratio)} of the time: {count} pauses in {duration(whole_s)}, "
            f"up to {duration(longest_s)}",
            evidence={
                "ratio": round(ratio, 4),
                "count": count,
                "longest_s": round(longest_s, 3),
                "step_time_s": shares.step_s,
            },
        )
