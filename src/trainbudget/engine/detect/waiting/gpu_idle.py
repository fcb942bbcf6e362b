"""A GPU does nothing while training is on."""

from __future__ import annotations

from collections.abc import Iterable

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.detect.devices import any_lost, fresh
from trainbudget.engine.timeline import Timeline
from trainbudget.findings import CodeRecord, Route, Severity, Threshold


class GpuIdle(BaseDetector):
    """A GPU of a run that should be training does nothing, and it is not a hang: a long evaluation or upload on the CPU."""

    record = CodeRecord(
        code="gpu_idle",
        family="waiting",
        severity=Severity.WARNING,
        title="A GPU is idle",
        condition="Utilization below 5 % with no step for 10 minutes while training is on (evaluations, saves and long pauses "
        "included); critical after 30 minutes.",
        silent="While steps come, whatever the utilization; in start-up (slow_start); in a hang or with a lost GPU, which say "
        "more; after the end (finished_holding_gpu); where the device does not answer.",
        evidence={
            "idle_s": "seconds of idleness without a step",
            "utilization_ratio": "mean over that time, at most the last 15 minutes",
            "phase": "the open phase, where there is one",
        },
        thresholds=(
            Threshold(name="utilization_ratio", default=0.05, unit="ratio", reason="a desktop or a monitor alone shows 0-4 %"),
            Threshold(name="for_s", default=600.0, unit="s", reason="evaluations and checkpoint uploads take minutes"),
            Threshold(name="critical_s", default=1800.0, unit="s", reason="half an hour is nobody's pause"),
        ),
        levers=(),
        route=Route.TICKET,
        runbook="See what the process does (py-spy dump, stacks.txt). Nothing is computed, everything is paid.",
    )

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        since_s = _no_step_since(timeline)
        if since_s is None:
            return
        limit_s = view.limit(self.record, "for_s")
        if timeline.now_s - since_s < limit_s or timeline.since(since_s) < limit_s:
            return
        if timeline.stalled_since_s is not None or any_lost(timeline):
            return
        for device in timeline.owned:
            if device.idle_since_s is None or not fresh(timeline, device):
                continue
            idle_s = timeline.since(max(device.idle_since_s, since_s))
            if idle_s < limit_s:
                continue
            critical = idle_s >= view.limit(self.record, "critical_s")
            mean = device.utilization_mean(max(since_s, device.idle_since_s), minimum=1)
            phase = timeline.run.phase
            yield Signal(
                "gpu_idle",
                gpu=device.index,
                phase=phase,
                severity=Severity.CRITICAL if critical else Severity.WARNING,
                summary=f"GPU {device.index} idle for {idle_s / 60:.0f} min{f' in the {phase} phase' if phase else ''}, no step",
                evidence={
                    "idle_s": round(idle_s, 1),
                    "utilization_ratio": None if mean is None else round(mean, 3),
                    "phase": phase,
                },
            )


def _no_step_since(timeline: Timeline) -> float | None:
    """End of the last step of a session that has begun stepping; an agent sees no steps, there it is the beginning."""
    if timeline.run.training and timeline.run.started and timeline.last_step is not None:
        return timeline.last_step.event.t_s
    if timeline.header.framework == "agent" and timeline.run.end is None:
        return 0.0
    return None
