"""Steps against their budget."""

from __future__ import annotations

from collections.abc import Iterable

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.detect.efficiency.busy import UPSTREAM
from trainbudget.findings import CodeRecord, Route, Severity, Threshold

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
        silent="In warm-up; without a budget for the step time; while another finding says why steps are slow; data waits, "
        "evaluation and saving do not count, they lie between steps.",
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
        median_s = timeline.steps.median_s()
        if median_s is None or not timeline.steps.enough(timeline.steps.window()) or EXPLAINED & view.raised:
            return
        high_s = max(budget.high or budget.value, budget.value * (1.0 + view.limit(self.record, "over_ratio")))
        if median_s > high_s:
            yield Signal(
                "step_over_budget",
                summary=f"{median_s:.3g} s a step, {budget.value:.3g} s planned (+{median_s / budget.value - 1:.0%})",
                evidence={
                    "step_time_s": median_s,
                    "budget_s": budget.value,
                    "high_s": high_s,
                    "over_ratio": round(median_s / budget.value - 1.0, 3),
                },
            )
