"""A plan meets its first steps: what was measured replaces what was assumed, and the interval narrows."""

from __future__ import annotations

from trainbudget.engine.timeline import Timeline
from trainbudget.events import Bound, BudgetFact, value_of

#: Steps after which the allocator's peak stands for the run at this shape: optimizer states are there from the second on.
CORRECT_AFTER_STEPS = 3
#: What is left uncertain once the same shape has been measured: fragmentation and the allocator's rounding of later batches.
MEASURED_SPREAD = 0.03


class CorrectedPlan:
    """Looks until it can correct the planned memory peak, once."""

    def __init__(self) -> None:
        self._done = False

    def look(self, timeline: Timeline) -> BudgetFact | None:
        """The corrected budget, once; None before, after, and for budgets that somebody gave.

        The plan's shape is kept: when longer batches than those seen so far are planned, the difference that the plan
        puts between them stays, scaled by what was measured over what was predicted.
        """
        planned = timeline.budget.get("memory_peak_bytes")
        if self._done or planned is None or planned.source != "plan" or timeline.steps.session_steps < CORRECT_AFTER_STEPS:
            return None
        measured = max((d.peak_used_bytes or 0.0 for d in timeline.owned if d.allocator is not None), default=0.0)
        predicted = value_of(planned) or 0.0
        if measured <= 0.0 or predicted <= 0.0:
            return None
        self._done = True
        ratio = measured / self._at_the_shape_seen(timeline, predicted)
        value = predicted * ratio
        spread = MEASURED_SPREAD if value <= measured * 1.001 else max(MEASURED_SPREAD, 0.5 * (value / measured - 1.0))
        low, high = max(measured, value * (1 - spread)), value * (1 + spread)
        bound = Bound(value=value, low=low, high=high, source="plan, corrected by measurement")
        return BudgetFact(t_s=timeline.now_s, memory_peak_bytes=bound)

    def _at_the_shape_seen(self, timeline: Timeline, predicted: float) -> float:
        """The plan's peak for the longest batch seen so far, where the plan tells peaks by tokens; else its peak."""
        points = timeline.plan.peak_by_tokens if timeline.plan is not None else None
        seen = max((r.event.max_sequence_tokens or 0.0 for r in timeline.steps.recent), default=0.0)
        if not points or seen <= 0.0:
            return predicted
        below = [p for p in points if p[0] <= seen] or points[:1]
        return below[-1][1]
