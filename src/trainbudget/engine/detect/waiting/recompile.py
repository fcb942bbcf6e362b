"""A single step that compiled something, long after the warm-up."""

from __future__ import annotations

from collections.abc import Iterable

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.tracks.spikes import COMPILE_FIRST_S, IDLE_SHARE, SPIKE_RATIO, SPIKE_S, Spike, is_recompile
from trainbudget.findings import CodeRecord, Route, Severity, Threshold
from trainbudget.quantities import duration

#: A recompilation is news for this long.
RECENT_S = 600.0


class Recompile(BaseDetector):
    """Steps far longer than the others in which the GPU was idle: the compiler met a new shape."""

    record = CodeRecord(
        code="recompile",
        family="waiting",
        severity=Severity.INFO,
        title="Something was compiled again in mid-run",
        condition="After the warm-up a step took 5 times as long as the others and 3 s more, with the GPU idle in most of it, "
        "in a run that compiles (setting, compile phase, the compiler's own counter, or a first step that looked like one). "
        "Warning from three in ten minutes on, or 5 % of that time.",
        silent="In warm-up; where the GPU was busy in the long step; where it was a collection of garbage, a save or an "
        "evaluation; in runs that do not compile.",
        evidence={
            "step": "the newest such step",
            "duration_s": "its seconds",
            "usual_s": "median step",
            "count": "such steps in the last ten minutes",
            "lost_s": "seconds beyond the usual in that time",
        },
        thresholds=(
            Threshold(name="spike_ratio", default=SPIKE_RATIO, unit="x", reason="batches of variable length stay within 2 to 3"),
            Threshold(name="spike_s", default=SPIKE_S, unit="s", reason="compiling even a small graph takes seconds"),
            Threshold(name="idle_ratio", default=IDLE_SHARE, unit="ratio", reason="the compiler works on the host"),
            Threshold(name="first_s", default=COMPILE_FIRST_S, unit="s", reason="a first step like this was a compilation"),
            Threshold(name="warning_count", default=3.0, unit="spikes", reason="one new shape happens, a series does not end"),
            Threshold(name="warning_ratio", default=0.05, unit="ratio", reason="a twentieth of the time is worth fixed shapes"),
        ),
        levers=("L46",),
        route=Route.TICKET,
        runbook="Keep shapes constant: drop the last batch, pad to a few lengths, mark dimensions dynamic "
        "(torch._dynamo.mark_dynamic). TORCH_LOGS=recompiles tells which guard failed.",
    )
    clear_s = 60.0

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        if not timeline.spikes.recent or timeline.now_s - timeline.spikes.recent[-1].t_s > RECENT_S:
            return
        compiles, first = timeline.compiles, timeline.spikes.compiled_first
        since_s = timeline.now_s - RECENT_S
        found: list[Spike] = [s for s in timeline.spikes.recent if s.t_s >= since_s and is_recompile(s, compiles, first)]
        if not found:
            return
        lost_s = sum(s.extra_s for s in found)
        newest = found[-1]
        many = len(found) >= view.limit(self.record, "warning_count")
        often = len(found) > 1 and lost_s >= view.limit(self.record, "warning_ratio") * RECENT_S
        yield Signal(
            "recompile",
            severity=Severity.WARNING if many or often else Severity.INFO,
            summary=f"step {newest.step} took {duration(newest.duration_s)} instead of {duration(newest.usual_s)}: "
            f"something was compiled again{f' ({len(found)} times in ten minutes)' if len(found) > 1 else ''}",
            evidence={
                "step": newest.step,
                "duration_s": round(newest.duration_s, 3),
                "usual_s": round(newest.usual_s, 4),
                "count": len(found),
                "lost_s": round(lost_s, 1),
            },
        )
