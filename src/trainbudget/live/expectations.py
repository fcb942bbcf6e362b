"""Budgets that come from the run itself: the plan corrected by its first steps, or learned where nobody gave one."""

from __future__ import annotations

from trainbudget.engine.timeline import Timeline
from trainbudget.events import AnyEvent
from trainbudget.live.corrected import CorrectedPlan
from trainbudget.live.learned import LearnedBudget


class Expectations:
    """Looks at the timeline after each round."""

    def __init__(self) -> None:
        self._corrected, self._learned = CorrectedPlan(), LearnedBudget()

    def look(self, timeline: Timeline) -> list[AnyEvent]:
        """What is to be expected now; nothing while there is nothing new."""
        corrected = self._corrected.look(timeline)
        if corrected:
            return corrected
        learned = self._learned.look(timeline)
        return [] if learned is None else [learned]
