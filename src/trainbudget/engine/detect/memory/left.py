"""Memory that an earlier session, or a loaded checkpoint, left on the device."""

from __future__ import annotations

from collections.abc import Iterable

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.detect.memory.standing import GIB, STANDING_EVIDENCE, gib, standing
from trainbudget.engine.timeline import Timeline
from trainbudget.engine.tracks.device import DeviceTrack
from trainbudget.findings import CodeRecord, Route, Severity, Threshold

_EXCESS = (
    Threshold(name="excess_ratio", default=0.10, unit="ratio", reason="levels at rest of the same model agree to 1-2 %"),
    Threshold(name="excess_bytes", default=0.25 * GIB, unit="bytes", reason="workspaces and buckets of one session"),
)
#: Lines at rest after which a level is known.
LEAST_LINES = 3


class LeftoverMemory(BaseDetector):
    """A later session in the same process holds more at rest than the one before."""

    record = CodeRecord(
        code="leftover_memory",
        family="memory",
        severity=Severity.WARNING,
        title="An earlier session left memory behind",
        condition="In a second training session of one process the level at rest exceeds the first one's by 10 % and "
        "256 MiB. Information where the model may have changed in between, warning after a retry.",
        silent="In the first session; when the model is known to be another one; after a resume (resume_excess).",
        evidence={
            **STANDING_EVIDENCE,
            "previous_rest_bytes": "level at rest of the session before",
            "excess_bytes": "more than that",
            "attempt": "which attempt this session is",
        },
        thresholds=_EXCESS,
        levers=(),
        route=Route.TICKET,
        runbook="Something still refers to the old trainer, model or optimizer: the exception of a caught out-of-memory error "
        "(its traceback holds the frames), a callback, a notebook's Out[]. Delete it, gc.collect(), torch.cuda.empty_cache().",
    )
    every_s = 30.0

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        session = timeline.run.session
        if session is None or len(timeline.run.sessions) < 2 or not timeline.run.training:
            return
        if session.resumed_at_step is not None:
            return
        for device in timeline.owned:
            track = device.memory
            before = track.previous_rest
            if before is None or track.rest.total < LEAST_LINES or track.session is not session:
                continue
            level = track.level_bytes or 0.0
            excess = level - before
            if excess < max(view.limit(self.record, "excess_bytes"), view.limit(self.record, "excess_ratio") * before):
                continue
            if timeline.model is not None and timeline.model.t_s > timeline.run.sessions[-2].begin_s:
                continue  # another model was announced since the session before began
            retried = session.attempt > 1
            yield Signal(
                "leftover_memory",
                gpu=device.index,
                severity=Severity.WARNING if retried else Severity.INFO,
                summary=f"{gib(excess)} more at rest than the session before ({gib(level)} against {gib(before)})",
                evidence={
                    **standing(device, timeline).evidence(),
                    "previous_rest_bytes": before,
                    "excess_bytes": round(excess),
                    "attempt": session.attempt,
                },
            )


def resume_excess(device: DeviceTrack, timeline: Timeline) -> tuple[float, float, str] | None:
    """(excess, expected, against what) of a resumed session, in bytes; None where it is less than 10 % or not known."""
    session, track = timeline.run.session, device.memory
    if session is None or session.resumed_at_step is None or track.session is not session or track.rest.total < LEAST_LINES:
        return None
    level = track.level_bytes or 0.0
    budget = timeline.budget.get("memory_peak_bytes")
    if budget is not None and track.session_peak is not None:
        # The peak that lasts: level at rest plus what a step adds, not the moment of loading.
        lasting = level + track.transient_bytes if track.transients else track.session_peak
        excess, expected, against = lasting - max(budget.high or 0.0, budget.value), budget.value, "budget"
    elif track.previous_rest is not None:
        excess, expected, against = level - track.previous_rest, track.previous_rest, "session"
    else:
        return None
    return (excess, expected, against) if excess >= 0.10 * expected else None


class ResumeExcess(BaseDetector):
    """After a resume the run holds more than the same run needs."""

    record = CodeRecord(
        code="resume_excess",
        family="memory",
        severity=Severity.WARNING,
        title="A resume left a copy of the checkpoint on the GPU",
        condition="In a resumed session the peak exceeds the budget (interval included) by 10 % and 256 MiB, or the level at "
        "rest that of the session before, and stays there.",
        silent="Without a resume; without a budget and without an earlier session to compare with; in the first steps.",
        evidence={
            **STANDING_EVIDENCE,
            "expected_bytes": "peak as budgeted, or level at rest before the resume",
            "excess_bytes": "more than that",
            "against": "budget or session",
            "state_bytes": "optimizer state, where its size is known",
        },
        thresholds=_EXCESS,
        levers=(),
        route=Route.TICKET,
        runbook="Load the checkpoint with map_location='cpu' and delete the object before training goes on. It costs the run its "
        "head-room: the next save or long batch may fail.",
    )
    every_s = 15.0

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        session = timeline.run.session
        if session is None or session.resumed_at_step is None or not timeline.run.training:
            return
        for device in timeline.owned:
            found = resume_excess(device, timeline)
            if found is None:
                continue
            excess, expected, against = found
            if excess < max(view.limit(self.record, "excess_bytes"), view.limit(self.record, "excess_ratio") * expected):
                continue
            yield Signal(
                "resume_excess",
                gpu=device.index,
                summary=f"{gib(excess)} more than {'planned' if against == 'budget' else 'before'} since the resume: "
                "a copy of the checkpoint is still on the GPU",
                evidence={
                    **standing(device, timeline).evidence(),
                    "expected_bytes": expected,
                    "excess_bytes": round(excess),
                    "against": against,
                    "state_bytes": timeline.budget_value("optimizer_state_bytes"),
                },
            )
