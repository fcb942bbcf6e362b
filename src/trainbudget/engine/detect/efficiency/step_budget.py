"""Steps against their budget."""

from __future__ import annotations

from collections.abc import Iterable

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.detect.efficiency.busy import UPSTREAM
from trainbudget.engine.detect.efficiency.evidence import tokens_per_s
from trainbudget.engine.forecast import trend
from trainbudget.engine.timeline import Timeline
from trainbudget.engine.tracks.steps import StepRecord
from trainbudget.findings import CodeRecord, Route, Severity, Threshold
from trainbudget.quantities import duration, times_over

#: Findings that explain slow steps: the budget's breach is their consequence and is not said twice.
EXPLAINED = UPSTREAM | {"busy_but_slow", "gc_pause", "launch_bound", "rank_imbalance", "scaling_inefficient"}


class StepOverBudget(BaseDetector):
    """Steps take longer than planned."""

    record = CodeRecord(
        code="step_over_budget",
        family="efficiency",
        severity=Severity.WARNING,
        title="Steps are slower than planned",
        condition="The median of the last 100 steps (at least 20) exceeds the budgeted step time by 20 %, its interval included.",
        silent="In warm-up; without a budget for the step time; while another finding says why steps are slow; while steps get "
        "quicker (batches sorted by length), or the planned tokens a second are met (longer batches); data waits, evaluation and "
        "saving do not count, they lie between steps.",
        evidence={
            "step_time_s": "median step",
            "budget_s": "budgeted step",
            "high_s": "what a step may take: upper end of the budget's interval",
            "over_ratio": "median over budget, minus 1",
        },
        thresholds=(
            Threshold(name="over_ratio", default=0.20, unit="ratio", reason="a calibrated prediction is right to 5-10 %"),
        ),
        levers=("L16", "L11", "L15"),
        route=Route.WEEKLY,
        runbook="Compare the split of the step (forward, backward, optimizer, communication) and the clocks with the first "
        "steps.",
    )
    every_s = 15.0
    hold_s = 60.0  # the findings that explain slow steps take up to 45 s to be sure
    clear_s = 60.0

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        if not timeline.budget or timeline.steps.warming:
            return
        budget = timeline.budget.get("step_time_s")
        if budget is None or not budget.value:
            return
        median_s, records = timeline.steps.median_s(), timeline.steps.window()
        if median_s is None or not timeline.steps.enough(records) or EXPLAINED & view.raised:
            return
        high_s = max(budget.high or budget.value, budget.value * (1.0 + view.limit(self.record, "over_ratio")))
        # Batches that are longer than planned now, or come longest first, are not what the run's will be.
        if median_s > high_s and _typical(timeline, high_s) and not (_falling(records) or _longer_batches(view, self.record)):
            yield Signal(
                "step_over_budget",
                summary=f"{duration(median_s)} a step, {duration(budget.value)} planned ({times_over(median_s / budget.value)})",
                evidence={
                    "step_time_s": median_s,
                    "budget_s": budget.value,
                    "high_s": high_s,
                    "over_ratio": round(median_s / budget.value - 1.0, 3),
                },
            )


def _falling(records: list[StepRecord]) -> bool:
    """Whether steps get significantly quicker within the window."""
    line = trend([r.end_s for r in records], [r.duration_s for r in records])
    return line is not None and line.falling


def _longer_batches(view: View, record: CodeRecord) -> bool:
    """Whether the planned tokens a second are met: then steps are long because there is more in them."""
    planned = view.timeline.budget_value("tokens_per_s")
    measured = tokens_per_s(view.timeline) if planned else None
    return planned is not None and measured is not None and measured * (1.0 + view.limit(record, "over_ratio")) >= planned


def _typical(timeline: Timeline, high_s: float) -> bool:
    """Whether slow steps are what the run's steps are like. Where lengths vary, up to 400 steps (an epoch's bins) must be "
    "slow."""
    recent = [r for r in timeline.steps.recent if r.steady]
    values = sorted(r.duration_s for r in recent)
    if not values or values[len(values) * 9 // 10] < 1.25 * values[len(values) // 10]:
        return True
    count = sum(r.count for r in recent)
    # Among batches of any length the latest 100 must not be the whole case: what lies before them counts too.
    return sum(r.duration_s * r.count for r in recent) / count > high_s
