"""Spend: time and money against what was planned."""

from __future__ import annotations

from collections.abc import Iterable

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.forecast import project
from trainbudget.findings import CodeRecord, Forecast, Route, Severity, Threshold


class StepOverBudget(BaseDetector):
    """Steps take longer than planned."""

    record = CodeRecord(
        code="step_over_budget",
        family="efficiency",
        severity=Severity.WARNING,
        title="Steps are slower than planned",
        condition="The median of the last 100 steps (at least 20) exceeds the budgeted step time by 20 %, its interval included.",
        silent="In warm-up; without a budget for the step time.",
        evidence={"step_time_s": "median step", "budget_s": "budgeted step", "high_s": "upper end of the budget's interval"},
        thresholds=(
            Threshold(name="over_ratio", default=0.20, unit="ratio", reason="a calibrated prediction is right to 5-10 %"),
        ),
        route=Route.WEEKLY,
        runbook="Compare the split of the step (data wait, communication, clocks) with the first steps of the run.",
    )
    hold_s = 10.0

    def check(self, view: View) -> Iterable[Signal]:
        budget = view.timeline.budget.get("step_time_s")
        records = view.timeline.steps.window()
        median_s = view.timeline.steps.median_s()
        if budget is None or median_s is None or not view.timeline.steps.enough(records):
            return
        high_s = max(budget.high or budget.value, budget.value * (1.0 + view.limit(self.record, "over_ratio")))
        if median_s > high_s:
            yield Signal(
                "step_over_budget",
                summary=f"{median_s:.3g} s a step, {budget.value:.3g} s planned (+{median_s / budget.value - 1:.0%})",
                evidence={"step_time_s": median_s, "budget_s": budget.value, "high_s": high_s},
            )


class CostOverBudget(BaseDetector):
    """The run will cost more than it may, or has."""

    record = CodeRecord(
        code="cost_over_budget",
        family="spend",
        severity=Severity.WARNING,
        title="The run will cost more than its budget",
        condition="The projected cost exceeds the budget, the low end of its interval too; critical once the money is spent.",
        silent="Without a price, a budget or a known number of steps; in warm-up; before 20 steps.",
        evidence={"cost": "spent so far", "projected_cost": "at the end", "budget": "may be spent", "currency": "of all three"},
        route=Route.TICKET,
        runbook="Decide: stop at a checkpoint, shorten the run, or raise the budget. The ledger says which part is waste.",
    )
    hold_s = 10.0

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        budget = timeline.budget_value("cost")
        price = timeline.price
        if budget is None or price is None:
            return
        if timeline.budget_currency and price.currency and timeline.budget_currency != price.currency:
            return  # never compared over currencies
        spent = sum(e.cost or 0.0 for e in view.ledger.entries().values()) * timeline.world_size
        projection = project(timeline, spent)
        currency = price.currency or timeline.budget_currency or ""
        evidence = {"cost": spent, "projected_cost": None, "budget": budget, "currency": currency}
        if spent > budget:
            yield Signal(
                "cost_over_budget",
                severity=Severity.CRITICAL,
                summary=f"{spent:.2f} of {budget:.2f} {currency} spent",
                evidence=evidence,
            )
        elif projection is not None and projection.cost is not None and (projection.cost_low or 0.0) > budget:
            evidence["projected_cost"] = projection.cost
            yield Signal(
                "cost_over_budget",
                summary=f"will cost {projection.cost:.2f} {currency}, {budget:.2f} may be spent",
                evidence=evidence,
                forecast=Forecast(at_s=_when_spent(timeline.now_s, spent, budget, projection.cost, projection.end_at_s)),
            )


def _when_spent(now_s: float, spent: float, budget: float, projected: float, end_s: float) -> float:
    return now_s + (end_s - now_s) * (budget - spent) / max(projected - spent, 1e-12)


DETECTORS = (StepOverBudget, CostOverBudget)
