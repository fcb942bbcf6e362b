"""It takes long until the first step."""

from __future__ import annotations

from collections.abc import Iterable

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.timeline import Timeline
from trainbudget.findings import CodeRecord, Route, Severity, Threshold
from trainbudget.quantities import percent

#: Phases that start-up is made of.
PARTS = frozenset({"import", "preprocess", "load", "compile"})
#: A start-up below this is nobody's concern, however short the run.
LEAST_S = 60.0


class SlowStart(BaseDetector):
    """Start-up takes minutes, or a large share of the planned run."""

    record = CodeRecord(
        code="slow_start",
        family="waiting",
        severity=Severity.INFO,
        title="Starting takes long",
        condition="From the process's start to the first step 10 minutes or more, or a minute and 10 % of the planned run. "
        "Warning from 30 minutes on.",
        silent="While no word of progress comes at all (no_first_step says more); in a machine's sleep.",
        evidence={
            "startup_s": "seconds so far, or until the first step",
            "planned_run_s": "of the run, where known",
            "phases_s": "seconds of each start-up phase that was announced",
        },
        thresholds=(
            Threshold(name="for_s", default=600.0, unit="s", reason="ten minutes of a node's price at every restart"),
            Threshold(name="run_ratio", default=0.10, unit="ratio", reason="a tenth of the money before anything is learned"),
            Threshold(
                name="warning_s", default=1800.0, unit="s", reason="half an hour at every attempt is worth an afternoon's work"
            ),
        ),
        levers=("L04",),
        route=Route.WEEKLY,
        runbook="See the start-up phases in the report: preprocess the data set once and cache it, save compiled artefacts, load "
        "weights from a local disk.",
    )
    every_s = 15.0

    def __init__(self) -> None:
        self._judged: float | None = None  # begin of the session whose start-up has been judged

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        run = timeline.run
        if run.end is not None or "no_first_step" in view.raised:
            return
        session = run.session
        if len(run.sessions) > 1 or (session is not None and session.begin_s == self._judged):
            return  # a later train() of the same process pays no start-up again
        first_s = session.first_step_start_s if session is not None else None
        if session is None and _interactive(timeline):
            return  # nobody has asked for training yet
        seconds = timeline.wall_s(first_s) - self._began_s(timeline)
        planned = _planned_s(timeline, seconds)
        known = first_s is not None and (planned is not None or timeline.steps.session_steps >= 100)
        if session is not None and known:
            self._judged = session.begin_s
        if not self._slow(view, seconds, planned):
            return
        phases = {name: s for name, s in run.phase_seconds.items() if name in PARTS}
        for phase in run.open:
            if phase.phase in PARTS:
                phases[phase.phase] = phases.get(phase.phase, 0.0) + timeline.since(phase.start_s)
        yield Signal(
            "slow_start",
            severity=Severity.WARNING if seconds >= view.limit(self.record, "warning_s") else Severity.INFO,
            summary=f"{seconds / 60:.0f} min {'until' if first_s is not None else 'so far without'} the first step"
            + (f", {percent(seconds / planned)} of the planned run" if planned else ""),
            evidence={
                "startup_s": round(seconds, 1),
                "planned_run_s": planned,
                "phases_s": {name: round(s, 1) for name, s in phases.items()},
            },
        )

    def _began_s(self, timeline: Timeline) -> float:
        """Wall second from which start-up counts: of the process; in a notebook, whose user thinks first, of the training."""
        session = timeline.run.session
        if session is not None and _interactive(timeline):
            return timeline.wall_s(session.begin_s)
        return timeline.started_s

    def _slow(self, view: View, seconds: float, planned: float | None) -> bool:
        if seconds >= view.limit(self.record, "for_s"):
            return True
        return planned is not None and seconds >= max(LEAST_S, view.limit(self.record, "run_ratio") * planned)


def _interactive(timeline: Timeline) -> bool:
    return timeline.header.host is not None and timeline.header.host.interactive is True


def _planned_s(timeline: Timeline, startup_s: float) -> float | None:
    """Seconds of the whole run, start-up included: budgeted, else start-up and all steps at the steady pace."""
    budgeted = timeline.budget_value("run_time_s")
    if budgeted is not None:
        return budgeted
    step_s = timeline.budget_value("step_time_s") or timeline.steps.baseline_s()
    total = timeline.steps_total
    return startup_s + total * step_s if step_s is not None and total is not None else None
