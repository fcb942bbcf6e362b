"""Training was announced and the first step does not come."""

from __future__ import annotations

from collections.abc import Iterable

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.detect.devices import any_lost, busiest_utilization
from trainbudget.engine.timeline import Timeline
from trainbudget.findings import CodeRecord, Route, Severity, Threshold


class NoFirstStep(BaseDetector):
    """No step since `train_begin`, and no word of progress either."""

    record = CodeRecord(
        code="no_first_step",
        family="stuck",
        severity=Severity.WARNING,
        title="The first step does not come",
        condition="Training has begun (or a start-up phase is open) and for 10 minutes there was neither a step nor a word of "
        "progress; three times as long in an announced phase or a resume that skips data. Critical after three times that.",
        silent="Before training was announced; while progress is reported; when the GPU is lost.",
        evidence={
            "silent_s": "seconds since the last word",
            "limit_s": "seconds that were granted",
            "phase": "the open phase, where there is one",
            "utilization_ratio": "of the busiest GPU over the last minute",
        },
        thresholds=(
            Threshold(
                name="for_s",
                default=600.0,
                unit="s",
                reason="weights, first batches and kernels are loaded within minutes; process-group time-outs are 10 to 30",
            ),
            Threshold(
                name="announced_factor",
                default=3.0,
                unit="x",
                reason="a phase that announced itself, or a resume, has said what it does: it is given three times as long",
            ),
        ),
        levers=(),
        route=Route.PAGE,
        runbook="Look at the Python stacks: a rendezvous that waits for a rank, a lock on the data set's cache, a download. "
        "Nothing is computed, everything is paid.",
    )

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        run = timeline.run
        if run.started or run.last_progress_s is None or run.end is not None:
            return
        if not run.training and not run.open:
            return
        silent_s = timeline.since(run.last_progress_s)
        limit_s = view.limit(self.record, "for_s")
        if silent_s < limit_s:
            return
        limit_s = max(limit_s, 3.0 * (_planned_startup_s(timeline) or 0.0))
        session = run.session
        if run.open or (session is not None and session.resumed_at_step):
            limit_s *= view.limit(self.record, "announced_factor")
        if silent_s < limit_s or any_lost(timeline):
            return
        utilization = busiest_utilization(timeline)
        yield Signal(
            "no_first_step",
            phase=run.phase,
            severity=Severity.CRITICAL if silent_s >= 3.0 * limit_s else Severity.WARNING,
            summary=f"no first step and no word of progress for {silent_s / 60:.0f} min"
            + (f" in the phase {run.phase}" if run.phase else " since training began"),
            evidence={
                "silent_s": round(silent_s, 1),
                "limit_s": round(limit_s, 1),
                "phase": run.phase,
                "utilization_ratio": None if utilization is None else round(utilization, 3),
            },
        )


def _planned_startup_s(timeline: Timeline) -> float | None:
    """What the plan leaves for start-up: run time beyond all steps, where both are known."""
    run_s, step_s, steps = (timeline.budget_value(n) for n in ("run_time_s", "step_time_s", "steps_total"))
    if run_s is None or step_s is None or steps is None:
        return None
    rest = run_s - step_s * steps
    # Evaluations and saves are in the rest too: a share beyond a fifth of the run is not start-up.
    return rest if 0.0 < rest < 0.2 * run_s else None
