"""A budget where nobody gave one: learned from the run's own first steady steps, and marked as learned."""

from __future__ import annotations

from trainbudget.engine.timeline import Timeline
from trainbudget.engine.tracks.series import quantile
from trainbudget.events import Bound, BudgetFact

#: Steady steps to learn from; fewer say nothing about the spread.
LEARN_STEPS = 50


class LearnedBudget:
    """Looks once enough steady steps are there, then never again."""

    def __init__(self) -> None:
        self._done = False

    def look(self, timeline: Timeline) -> BudgetFact | None:
        """The learned budget, once; None before and after.

        The interval is the 5 % to 95 % range of the steps seen, at least +-10 %: runs with batches of variable length
        get the room they need.
        """
        if self._done or timeline.steps.steady_since_step is None:
            return None
        records = timeline.steps.window()
        if not timeline.steps.enough(records, LEARN_STEPS):
            return None
        self._done = True
        fact = BudgetFact(t_s=timeline.now_s, source="learned")
        if "step_time_s" not in timeline.budget:
            durations = [r.duration_s for r in records]
            middle = quantile(durations, 0.5) or 0.0
            low, high = quantile(durations, 0.05) or 0.0, quantile(durations, 0.95) or 0.0
            fact.step_time_s = Bound(value=middle, low=min(low, 0.9 * middle), high=max(high, 1.1 * middle), source="learned")
        if "memory_peak_bytes" not in timeline.budget:
            peaks = [d.peak_reserved_bytes or d.peak_used_bytes for d in timeline.owned]
            known = [p for p in peaks if p]
            if known:
                peak = max(known)
                fact.memory_peak_bytes = Bound(value=peak, low=0.9 * peak, high=1.1 * peak, source="learned")
        return None if fact.step_time_s is None and fact.memory_peak_bytes is None else fact
