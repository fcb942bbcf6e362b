"""Who may override a budget: what somebody allows stands, a plan fills in what nobody gave and is corrected by a later one."""

from __future__ import annotations

from trainbudget.engine.timeline import Timeline
from trainbudget.events import Bound, BudgetFact, Header


def test_a_plan_does_not_raise_or_lower_what_was_allowed() -> None:
    """A plan's cost once replaced the user's: a run of 0.10 USD was told that it might spend 0.0005."""
    timeline = Timeline()
    timeline.feed(Header(budget=BudgetFact(cost=Bound(value=0.1, source="given"), currency="USD")))
    timeline.feed(BudgetFact(t_s=1.0, cost=Bound(value=0.0005, source="plan"), step_time_s=Bound(value=0.9, source="plan")))
    assert timeline.budget_value("cost") == 0.1
    assert timeline.budget_value("step_time_s") == 0.9


def test_a_corrected_plan_replaces_the_plan_and_a_new_allowance_the_old_one() -> None:
    timeline = Timeline()
    timeline.feed(Header(budget=BudgetFact(cost=40.0)))
    timeline.feed(BudgetFact(t_s=1.0, memory_peak_bytes=Bound(value=1e9, source="plan")))
    timeline.feed(BudgetFact(t_s=2.0, memory_peak_bytes=Bound(value=2e9, source="plan, corrected by measurement"), cost=50.0))
    assert timeline.budget_value("memory_peak_bytes") == 2e9
    assert timeline.budget_value("cost") == 50.0
