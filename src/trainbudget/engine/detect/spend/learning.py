"""Nothing is learned any more: the loss is not a number, or does not move."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.detect.money import cost_of, hours_and_money
from trainbudget.engine.forecast import trend_of
from trainbudget.engine.tracks.learning import Streak
from trainbudget.engine.tracks.series import Point, Series, median
from trainbudget.findings import CodeRecord, Route, Severity, Threshold


class NothingLearned(BaseDetector):
    """Money is spent on steps that change nothing for the better."""

    record = CodeRecord(
        code="nothing_learned",
        family="spend",
        severity=Severity.CRITICAL,
        title="The run learns nothing any more",
        condition="Three reported losses in a row, or 25 gradient norms in a row, are not finite (critical). Or the loss is the "
        "same number throughout and gradients are zero (warning). Or it shows no fall over 1,000 steps and an hour (info).",
        silent="A single non-finite loss; gradients that a loss scaler skipped; where neither loss nor gradient norm is "
        "reported; a flat loss in a run that was resumed, whose loss is not positive (rewards, likelihood ratios), or that has "
        "come down.",
        evidence={
            "what": "loss_not_finite, gradient_not_finite, constant_loss or flat_loss",
            "since_step": "first step of it",
            "since_s": "trace time of it",
            "values": "reported values it rests on",
            "first_loss": "median of the first tenth of the reported losses; null for non-finite values",
            "last_loss": "median of the last tenth",
            "gpu_seconds": "spent since then",
            "cost": "of them; null without a price",
        },
        thresholds=(
            Threshold(
                name="losses",
                default=3.0,
                unit="reports",
                reason="one broken batch makes one; weights that are not finite make all that follow",
            ),
            Threshold(
                name="gradients",
                default=25.0,
                unit="reports",
                reason="a loss scaler that starts at 2^16 halves 16 times on its way to 1; 25 in a row is past any search",
            ),
            Threshold(
                name="flat_steps", default=1000.0, unit="steps", reason="warm-up of the learning rate takes up to 1,000 steps"
            ),
            Threshold(name="flat_s", default=3600.0, unit="s", reason="shorter runs are tests; a test's loss need not fall"),
        ),
        levers=("L34",),
        route=Route.TICKET,
        runbook="Stop and go back to the last checkpoint before that step. Lower the learning rate, look at the batch of that "
        "step, prefer bf16 to fp16. constant_loss, flat_loss: check that parameters are trained and that the learning rate is "
        "not zero.",
    )
    every_s = 15.0
    clear_s = 120.0

    def __init__(self) -> None:
        self._judged: Series | None = None
        self._judge_again_at = 0
        self._verdict: str | None = None

    def check(self, view: View) -> Iterable[Signal]:
        track = view.timeline.learning
        if track.bad_loss.count >= view.limit(self.record, "losses"):
            yield self._not_finite(view, "loss", track.bad_loss)
        elif track.bad_gradient.count >= view.limit(self.record, "gradients"):
            yield self._not_finite(view, "gradient", track.bad_gradient)
        elif track.losses.total >= FLAT_REPORTS and view.timeline.run.training:
            yield from self._flat(view)

    def _not_finite(self, view: View, what: str, streak: Streak) -> Signal:
        gpu_s = self._spent_since(view, streak.since_s)
        return Signal(
            "nothing_learned",
            severity=Severity.CRITICAL,
            summary=f"the {what} has been NaN or infinite since step {streak.since_step}: {hours_and_money(view, gpu_s)} so far",
            evidence={
                "what": f"{what}_not_finite",
                "since_step": streak.since_step,
                "since_s": streak.since_s,
                "values": streak.count,
                "first_loss": None,
                "last_loss": None,
                "gpu_seconds": round(gpu_s, 1),
                "cost": cost_of(view, gpu_s),
            },
        )

    def _flat(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        session = timeline.run.session
        if session is None or session.resumed_at_step is not None:
            return
        first_s = session.first_step_end_s or session.begin_s
        if timeline.steps.session_steps < view.limit(self.record, "flat_steps"):
            return
        if timeline.since(first_s) < view.limit(self.record, "flat_s"):
            return
        losses = timeline.learning.losses
        if self._judged is not losses or losses.total >= self._judge_again_at:
            # A verdict over the whole run changes slowly: it is taken anew when there is a tenth more to go by.
            self._judged, self._judge_again_at = losses, losses.total + max(10, losses.total // 10)
            self._verdict = _verdict(losses.points, timeline.learning.largest_gradient)
        if self._verdict is not None:
            yield self._not_falling(view, self._verdict, first_s)

    def _not_falling(self, view: View, what: str, since_s: float) -> Signal:
        gpu_s = self._spent_since(view, since_s)
        points = view.timeline.learning.losses.points
        first, last = _tenth(points, first=True), _tenth(points, first=False)
        evidence: dict[str, Any] = {
            "what": what,
            "since_step": points[0].step,
            "since_s": since_s,
            "values": view.timeline.learning.losses.total,
            "first_loss": first,
            "last_loss": last,
            "gpu_seconds": round(gpu_s, 1),
            "cost": cost_of(view, gpu_s),
        }
        words = "the loss is the same number in every step" if what == "constant_loss" else "the loss has not come down"
        return Signal(
            "nothing_learned",
            severity=Severity.WARNING if what == "constant_loss" else Severity.INFO,
            summary=f"{words}: {first:.4g} at first, {last:.4g} now; {hours_and_money(view, gpu_s)}",
            evidence=evidence,
        )

    def _spent_since(self, view: View, since_s: float | None) -> float:
        seconds = view.timeline.since(since_s) if since_s is not None else 0.0
        return seconds * view.ledger.charged_count


#: Reports before a loss can be called flat: the medians of two tenths of them then rest on 10 values each.
FLAT_REPORTS = 100
#: Losses of different batches differ by more than this unless the model's output no longer depends on them.
CONSTANT_RATIO = 1e-4
#: Gradients below this change no fp32 weight at any usual learning rate (fp32 epsilon 1.2e-7).
NO_GRADIENT = 1e-7


#: The medians of two tenths of equally distributed losses differ by chance: a median's standard error is 1.25 standard
#: deviations over the root of their number, and 1.645 of those hold 90 % (a loss that does not move falls by less).
CHANCE = 1.25 * 1.645


def _tenth(points: list[Point], *, first: bool) -> float:
    size = max(10, len(points) // 10)
    part = points[:size] if first else points[-size:]
    return median([p.value for p in part]) or 0.0


def _spread(values: list[float]) -> float:
    """Standard deviation from the mean distance of neighbours (1.128 of it for a normal one): a fall does not widen it."""
    return sum(abs(b - a) for a, b in pairwise(values)) / max(1, len(values) - 1) / 1.128


def _verdict(points: list[Point], largest_gradient: float | None) -> str | None:
    values = [p.value for p in points]
    lowest, highest = min(values), max(values)
    if highest - lowest <= CONSTANT_RATIO * abs(highest) and largest_gradient is not None and largest_gradient <= NO_GRADIENT:
        return "constant_loss"
    return "flat_loss" if lowest > 0.0 and _no_fall(points) else None


def _no_fall(points: list[Point]) -> bool:
    """Whether the last tenth is no lower than the first, beyond chance, and no falling trend is significant in between."""
    fall = _tenth(points, first=True) - _tenth(points, first=False)
    if fall > CHANCE * _spread([p.value for p in points]) * math.sqrt(2.0 / max(10, len(points) // 10)):
        return False
    line = trend_of(points)
    return line is not None and not line.falling
