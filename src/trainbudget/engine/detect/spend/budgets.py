"""The job's budgets of money and of time: will they hold, and have they been used up."""

from __future__ import annotations

from collections.abc import Iterable

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.detect.money import spent_by_job
from trainbudget.engine.forecast import Projection, project
from trainbudget.findings import CodeRecord, Forecast, Route, Severity, Threshold
from trainbudget.quantities import duration, money

#: A run that would last five years is a total that nobody meant.
ABSURD_S = 5 * 365 * 86400.0

_OVER = Threshold(
    name="over_ratio",
    default=0.02,
    unit="ratio",
    reason="a budget copied from the plan is met to a few per cent by rounding alone; the interval's low end must be over it",
)


class CostOverBudget(BaseDetector):
    """The job will cost more than it may, or has."""

    record = CodeRecord(
        code="cost_over_budget",
        family="spend",
        severity=Severity.WARNING,
        title="The run will cost more than its budget",
        condition="The low end of the projected cost's interval exceeds the budget; critical once the money is spent that "
        "somebody allowed (what a plan has reckoned is exceeded with a warning).",
        silent="Without a price, a budget or a known number of steps (what is spent already needs no projection); in warm-up; "
        "before 20 steps; when budget and price are in different currencies; on ranks other than 0.",
        evidence={
            "cost": "spent so far by the whole job, earlier attempts included",
            "projected_cost": "at the end of the run; null where it cannot be projected",
            "projected_low": "low end of its 90 % interval",
            "projected_high": "high end of its 90 % interval",
            "budget": "may be spent",
            "currency": "of all of them",
            "assumed": "true when other ranks' cost is not known and taken to be like this one's",
        },
        thresholds=(_OVER,),
        levers=("L33", "L08", "L12"),
        route=Route.TICKET,
        runbook="Decide: stop at a checkpoint, shorten the run, or raise the budget. The ledger says which part is waste.",
    )
    every_s = 15.0
    hold_s = 30.0

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        if not timeline.budget:
            return
        budget, price = timeline.budget_value("cost"), timeline.price
        if budget is None or price is None or timeline.rank != 0:
            return
        if timeline.budget_currency and price.currency and timeline.budget_currency != price.currency:
            return  # money is never compared over currencies
        spent, assumed = spent_by_job(view)
        projection = _believable(project(timeline, spent))
        currency = price.currency or timeline.budget_currency or ""
        may = budget * (1.0 + view.limit(self.record, "over_ratio"))
        evidence = {
            "cost": round(spent, 4),
            "projected_cost": projection.cost if projection is not None else None,
            "projected_low": projection.cost_low if projection is not None else None,
            "projected_high": projection.cost_high if projection is not None else None,
            "budget": budget,
            "currency": currency,
            "assumed": assumed,
        }
        if spent > budget:
            yield Signal(
                "cost_over_budget",
                severity=_once_used_up(view, "cost"),
                summary=f"{money(spent, currency)} are spent, {money(budget, currency)} {_wording(view, 'cost')}",
                evidence=evidence,
            )
        elif projection is not None and projection.cost is not None and (projection.cost_low or 0.0) > may:
            yield Signal(
                "cost_over_budget",
                summary=f"the run will cost {money(projection.cost, currency)}, "
                f"{money(budget, currency)} {_wording(view, 'cost')}",
                evidence=evidence,
                forecast=_crossing(
                    timeline.now_s,
                    spent,
                    budget,
                    (projection.cost, projection.cost_low, projection.cost_high),
                    projection.end_at_s,
                ),
            )


class TimeOverBudget(BaseDetector):
    """The run will take longer than it may, or has."""

    record = CodeRecord(
        code="time_over_budget",
        family="spend",
        severity=Severity.WARNING,
        title="The run will take longer than its budget",
        condition="The low end of the projected run time's interval exceeds the budget; critical once the time is over that "
        "somebody allowed (what a plan has reckoned is exceeded with a warning).",
        silent="Without a budget or a known number of steps (time that is over needs no projection); in warm-up; before 20 "
        "steps; once training has ended; on ranks other than 0.",
        evidence={
            "elapsed_s": "wall seconds since process start, suspends left out",
            "projected_s": "at the end of the run; null where it cannot be projected",
            "projected_low": "low end of its 90 % interval",
            "projected_high": "high end of its 90 % interval",
            "budget_s": "may take",
            "pace_s": "wall seconds a step, phases included",
        },
        thresholds=(_OVER,),
        levers=("L33", "L08", "L12"),
        route=Route.TICKET,
        runbook="A job limit would end the run before its last step: shorten it, or have a checkpoint before the limit.",
    )
    every_s = 15.0
    hold_s = 30.0

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        if not timeline.budget:
            return
        budget_s = timeline.budget_value("run_time_s")
        if not budget_s or timeline.rank != 0 or not timeline.run.training:
            return
        elapsed_s = timeline.wall_s() - timeline.started_s
        projection = _believable(project(timeline, None))
        may_s = budget_s * (1.0 + view.limit(self.record, "over_ratio"))
        evidence = {
            "elapsed_s": round(elapsed_s, 1),
            "projected_s": projection.run_time_s if projection is not None else None,
            "projected_low": projection.run_time_low_s if projection is not None else None,
            "projected_high": projection.run_time_high_s if projection is not None else None,
            "budget_s": budget_s,
            "pace_s": projection.pace_s if projection is not None else None,
        }
        if elapsed_s > budget_s:
            yield Signal(
                "time_over_budget",
                severity=_once_used_up(view, "run_time_s"),
                summary=f"the run has taken {duration(elapsed_s)}, {duration(budget_s)} {_wording(view, 'run_time_s')}",
                evidence=evidence,
            )
        elif projection is not None and projection.run_time_low_s > may_s:
            yield Signal(
                "time_over_budget",
                summary=f"the run will take {duration(projection.run_time_s)}, "
                f"{duration(budget_s)} {_wording(view, 'run_time_s')}",
                evidence=evidence,
                forecast=Forecast(
                    at_s=timeline.now_s + budget_s - elapsed_s,
                    low=timeline.now_s + budget_s - elapsed_s,
                    high=timeline.now_s + budget_s - elapsed_s,
                ),
            )


def _is_given(view: View, name: str) -> bool:
    """Whether somebody has set the budget; a plan's and a learned one are expectations."""
    bound = view.timeline.budget.get(name)
    return bound is not None and bound.source in (None, "given")


def _once_used_up(view: View, name: str) -> Severity:
    return Severity.CRITICAL if _is_given(view, name) else Severity.WARNING


def _wording(view: View, name: str) -> str:
    return "are allowed" if _is_given(view, name) else "were planned"


def _believable(projection: Projection | None) -> Projection | None:
    return projection if projection is not None and projection.run_time_s < ABSURD_S else None


def _crossing(
    now_s: float, spent: float, budget: float, projected: tuple[float, float | None, float | None], end_s: float
) -> Forecast:
    """When the budget is used up, from what is spent now and what will be at the end."""

    def at(cost: float | None) -> float | None:
        if cost is None or cost <= budget:
            return None
        return now_s + (end_s - now_s) * (budget - spent) / max(cost - spent, 1e-12)

    value, low, high = projected
    return Forecast(at_s=at(value), low=at(high), high=at(low))
