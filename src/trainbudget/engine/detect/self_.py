"""The monitor watches itself: what it costs the run."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.findings import CodeRecord, Route, Severity, Threshold
from trainbudget.quantities import percent


class _Mark(NamedTuple):
    t_s: float
    wall_s: float
    hook_s: float | None
    cpu_s: float | None
    steps: int


class MonitorOverhead(BaseDetector):
    """Watching takes more of the training thread, or of the CPU, than it may."""

    record = CodeRecord(
        code="monitor_overhead",
        family="self",
        severity=Severity.WARNING,
        title="Watching costs too much",
        condition="Over 5 minutes (at least 1) hooks take more than 1 % of the training thread's time, or all of trainbudget "
        "more than half a core.",
        silent="Before 20 steps; where the monitor does not report on itself.",
        evidence={
            "hook_ratio": "share of wall time inside hooks on the training thread",
            "hook_s_per_step": "seconds in hooks for one step",
            "cpu_cores": "CPU seconds a second of all of trainbudget's threads",
            "span_s": "seconds it was measured over",
        },
        thresholds=(
            Threshold(
                name="hook_ratio",
                default=0.01,
                unit="ratio",
                reason="twice the promise of 0.5 % of a step; above it watching costs more than it can save in a good run",
            ),
            Threshold(
                name="cpu_cores", default=0.5, unit="cores", reason="half a core is missing to loader workers on small machines"
            ),
        ),
        route=Route.WEEKLY,
        runbook="Sample less often (sample_period), turn probes off, and report it: this is a fault of trainbudget.",
    )
    every_s = 10.0
    hold_s = 30.0
    clear_s = 120.0

    def __init__(self) -> None:
        self._marks: deque[_Mark] = deque(maxlen=31)  # 5 minutes of one fact every 10 s

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        fact = timeline.self_
        if fact is None or timeline.run.end is not None:
            return
        if not self._marks or fact.t_s > self._marks[-1].t_s:
            if not timeline.run.started or timeline.steps.warming:
                self._marks.clear()
                return
            mark = _Mark(fact.t_s, timeline.wall_s(fact.t_s), fact.hook_s, fact.cpu_s, timeline.steps.total)
            if self._marks and _went_back(self._marks[-1], mark):
                self._marks.clear()  # counters restarted
            self._marks.append(mark)
        first, last = self._marks[0], self._marks[-1]
        span_s, steps = last.wall_s - first.wall_s, last.steps - first.steps
        if span_s < 60.0 or steps < 20:
            return
        hook_s = _difference(first.hook_s, last.hook_s)
        cpu_s = _difference(first.cpu_s, last.cpu_s)
        hook_ratio = None if hook_s is None else hook_s / span_s
        cores = None if cpu_s is None else cpu_s / span_s
        slow = hook_ratio is not None and hook_ratio > view.limit(self.record, "hook_ratio")
        hungry = cores is not None and cores > view.limit(self.record, "cpu_cores")
        if slow or hungry:
            what = f"{percent(hook_ratio)} of the training thread's time" if slow else f"{cores:.2f} CPU cores"
            yield Signal(
                "monitor_overhead",
                summary=f"watching takes {what}",
                evidence={
                    "hook_ratio": None if hook_ratio is None else round(hook_ratio, 5),
                    "hook_s_per_step": None if hook_s is None else round(hook_s / steps, 6),
                    "cpu_cores": None if cores is None else round(cores, 3),
                    "span_s": round(span_s, 1),
                },
            )


def _difference(first: float | None, last: float | None) -> float | None:
    return None if first is None or last is None else last - first


def _went_back(before: _Mark, after: _Mark) -> bool:
    return any(b is not None and a is not None and a < b for b, a in ((before.hook_s, after.hook_s), (before.cpu_s, after.cpu_s)))


DETECTORS = (MonitorOverhead,)
