"""Budgets that come from the run itself: the plan corrected by its first steps, or learned where nobody gave one."""

from __future__ import annotations

from trainbudget.engine.timeline import Timeline
from trainbudget.events import BudgetFact
from trainbudget.live.corrected import CorrectedPlan
from trainbudget.live.learned import LearnedBudget


class Expectations:
    """Looks at the timeline after each round; answers once for each of the two."""

    def __init__(self) -> None:
        self._corrected, self._learned = CorrectedPlan(), LearnedBudget()

    def look(self, timeline: Timeline) -> BudgetFact | None:
        """The newest budget, or None while there is nothing new."""
        return self._corrected.look(timeline) or self._learned.look(timeline)
