"""Evaluation, saving and logging as shares of the time of whole cycles."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.detect.money import cost_of, hours_and_money
from trainbudget.engine.tracks.phase_shares import PhaseShare
from trainbudget.engine.tracks.steps import MIN_STEPS, WINDOW_S, WINDOW_STEPS
from trainbudget.findings import CodeRecord, Route, Severity, Threshold
from trainbudget.quantities import duration, percent

_ENOUGH = Threshold(
    name="least_s",
    default=30.0,
    unit="s",
    reason="what takes less than half a minute in all is not worth anybody's attention, whatever its share of a short run",
)
_EVIDENCE = {
    "share_ratio": "share of the wall time of the newest cycles (up to 8)",
    "phase_s": "mean seconds of one phase",
    "every_s": "mean seconds from the end of one to the end of the next",
    "count": "phases so far",
    "gpu_seconds": "booked to it so far, on all charged GPUs",
    "cost": "of them; null without a price",
    "projected_gpu_seconds": "at the end of the run at this share; null while its end is unknown",
}


#: Phases of one kind take the same time within a factor of two; one that takes three times as long as any other was another
#: matter (the first save of a run, an upload that retried) until it comes again.
ONCE_RATIO = 3.0


def _once_only(share: PhaseShare, span_s: float, limit: float) -> bool:
    """Whether a single long phase makes the share, and the others do not."""
    longest, *others = sorted((c.own_s for c in share.cycles), reverse=True)
    if not others or longest <= ONCE_RATIO * others[0]:
        return False
    return sum(others) < limit * (span_s - longest)


class _Share(BaseDetector):
    """One kind of phase takes more than its share."""

    kind: ClassVar[str]
    verb: ClassVar[str]
    record: ClassVar[CodeRecord]
    least_count: ClassVar[int] = 2
    every_s = 15.0
    clear_s = 300.0  # a share moves with every cycle; cycles take minutes

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        share = timeline.shares.kinds[self.kind]
        if share.count < self.least_count or not timeline.run.training:
            return
        seconds, span_s = share.seconds(), share.span_s(timeline.wall_s())
        steps = timeline.steps.session_steps
        if span_s <= 0.0 or steps < MIN_STEPS or (steps < WINDOW_STEPS and span_s < WINDOW_S):
            return
        ratio = seconds / span_s
        if ratio < view.limit(self.record, "share_ratio") or share.total_s < view.limit(self.record, "least_s"):
            return
        if self._planned(view, share.total_s) or _once_only(share, span_s, view.limit(self.record, "share_ratio")):
            return
        booked = view.ledger.seconds.get(self.kind, 0.0)
        cycles = len(share.cycles)
        yield Signal(
            self.record.code,
            phase=self.kind,
            summary=f"{percent(ratio)} of the time goes into {self.verb} ({duration(seconds / cycles)} in every "
            f"{duration(span_s / cycles)}), so far {hours_and_money(view, booked)}",
            evidence={
                "share_ratio": round(ratio, 4),
                "phase_s": round(seconds / cycles, 3),
                "every_s": round(span_s / cycles, 3),
                "count": share.count,
                "gpu_seconds": round(booked, 1),
                "cost": cost_of(view, booked),
                "projected_gpu_seconds": self._projected(view, ratio),
            },
        )

    def _planned(self, view: View, seconds: float) -> bool:
        """Whether the budget has room for what was spent, at the run's progress so far."""
        timeline = view.timeline
        allowed_s = timeline.budget_value(f"{self.kind}_time_s")
        total, done = timeline.steps_total, timeline.run.last_step
        if allowed_s is None or total is None or done is None:
            return False
        return seconds <= allowed_s * min(1.0, done / total) * 1.1

    def _projected(self, view: View, ratio: float) -> float | None:
        timeline = view.timeline
        left, track = timeline.steps_left, timeline.steps
        if left is None or track.session_steps < 2 or timeline.run.session is None:
            return None
        first_s = timeline.run.session.first_step_start_s
        if first_s is None:
            return None
        pace_s = timeline.since(first_s) / track.session_steps
        booked = view.ledger.seconds.get(self.kind, 0.0)
        return round(booked + ratio * left * pace_s * view.ledger.charged_count, 1)


class EvalShare(_Share):
    """Too much evaluation."""

    kind = "eval"
    verb = "evaluation"
    record = CodeRecord(
        code="eval_share",
        family="spend",
        severity=Severity.WARNING,
        title="Evaluation takes a large part of the run",
        condition="Evaluation takes 15 % or more of the wall time of the newest cycles, after two evaluations and 100 steps or "
        "10 minutes.",
        silent="In sanity checks and before the first step; after a single evaluation, or a single long one among short ones; "
        "below half a minute in all; while the planned evaluation time has room.",
        evidence=_EVIDENCE,
        thresholds=(
            Threshold(
                name="share_ratio",
                default=0.15,
                unit="ratio",
                reason="evaluations that steer a run need a few per cent of it (a 1-2 % held-out split at every 2-10 % of the "
                "run); at 15 % halving their number buys more than 8 % of the run's time",
            ),
            _ENOUGH,
        ),
        levers=("L30",),
        route=Route.WEEKLY,
        runbook="Evaluate less often, on fewer batches, with a larger batch, or only the loss.",
    )


class SaveShare(_Share):
    """Too much saving."""

    kind = "save"
    verb = "saving checkpoints"
    record = CodeRecord(
        code="save_share",
        family="spend",
        severity=Severity.WARNING,
        title="Saving takes a large part of the run",
        condition="Saving takes 5 % or more of the wall time of the newest cycles, after two saves and 100 steps or 10 minutes.",
        silent="After a single save, or a single long one among short ones; below half a minute in all; while the planned saving "
        "time has room.",
        evidence=_EVIDENCE,
        thresholds=(
            Threshold(
                name="share_ratio",
                default=0.05,
                unit="ratio",
                reason="at the best interval sqrt(2 x save x MTBF) (Young 1974) saving takes sqrt(save / (2 x MTBF)) of the "
                "time: 5 % would be right only for a run that fails once in 200 saves, e.g. hourly with saves of 20 s",
            ),
            _ENOUGH,
        ),
        levers=("L31",),
        route=Route.WEEKLY,
        runbook="Save less often, save only what a resume needs, to a local disk, or asynchronously.",
    )


class LogShare(_Share):
    """Too much logging."""

    kind = "log"
    verb = "logging"
    least_count = 5
    record = CodeRecord(
        code="log_share",
        family="spend",
        severity=Severity.WARNING,
        title="Logging takes a large part of the run",
        condition="Logging and callbacks take 5 % or more of the wall time of the newest cycles, after 100 steps or 10 minutes.",
        silent="After fewer than five logs; below half a minute in all; where the framework does not tell when it logs.",
        evidence=_EVIDENCE,
        thresholds=(
            Threshold(
                name="share_ratio",
                default=0.05,
                unit="ratio",
                reason="writing numbers takes milliseconds; at 5 % each log blocks on a network, a disk or a device sync",
            ),
            _ENOUGH,
        ),
        levers=("L32",),
        route=Route.WEEKLY,
        runbook="Log less often; look for trackers that upload in the training thread and for `.item()` on every step.",
    )
