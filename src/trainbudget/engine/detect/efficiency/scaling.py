"""More GPUs, less work from each."""

from __future__ import annotations

from collections.abc import Iterable

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.detect.efficiency.evidence import settled
from trainbudget.engine.detect.money import cost_of, hours_and_money
from trainbudget.findings import CodeRecord, Route, Severity, Threshold
from trainbudget.quantities import percent

#: Findings that name the loss already.
_UPSTREAM = frozenset(
    {
        "communication_bound",
        "straggler",
        "rank_imbalance",
        "naive_model_parallel",
        "unused_gpu",
        "busy_but_slow",
        "thermal_throttle",
    }
)


class ScalingInefficient(BaseDetector):
    """A step of the same work per GPU takes much longer on many GPUs than on one."""

    record = CodeRecord(
        code="scaling_inefficient",
        family="efficiency",
        severity=Severity.WARNING,
        title="Many GPUs, little more work",
        condition="The step of the same per-GPU batch on one GPU alone takes less than 80 % of this run's median step.",
        silent="On one GPU; where the step time of one GPU is not known (plan, budget or an earlier run); in warm-up; while a "
        "finding names the loss (communication, a straggler, unequal load).",
        evidence={
            "efficiency_ratio": "step on one GPU over step here",
            "step_time_s": "median step here",
            "step_time_one_gpu_s": "on one GPU",
            "gpus": "of the job",
            "gpu_seconds": "lost to it so far",
            "cost": "of them; null without a price",
        },
        thresholds=(
            Threshold(
                name="efficiency_ratio",
                default=0.80,
                unit="ratio",
                reason="gradients overlap with the backward pass: 90 % and more is usual within a node; below 80 % a fifth of "
                "the money buys waiting for one another",
            ),
            Threshold(name="steps", default=50.0, unit="steps", reason="rings and buckets settle in the first steps"),
        ),
        levers=("L24", "L36", "L25"),
        route=Route.WEEKLY,
        runbook="Compare the cost of a sample on half as many GPUs. Look at exposed communication, bucket sizes and the "
        "slowest rank.",
    )
    every_s = 30.0
    hold_s = 60.0
    clear_s = 120.0

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        if not timeline.budget:
            return
        alone_s = timeline.budget_value("step_time_one_gpu_s")
        gpus = max(1, len(timeline.owned)) * timeline.world_size
        if not alone_s or gpus < 2 or _UPSTREAM & view.raised or not settled(timeline, view.limit(self.record, "steps")):
            return
        median_s = timeline.steps.median_s()
        if not median_s or not timeline.steps.enough(timeline.steps.window()):
            return
        ratio = alone_s / median_s
        if ratio >= view.limit(self.record, "efficiency_ratio"):
            return
        lost = (1.0 - ratio) * view.ledger.seconds.get("compute", 0.0) * timeline.world_size
        yield Signal(
            "scaling_inefficient",
            summary=f"{gpus} GPUs do the work of {gpus * ratio:.1f} ({percent(ratio)}): {hours_and_money(view, lost)} so far",
            evidence={
                "efficiency_ratio": round(ratio, 3),
                "step_time_s": median_s,
                "step_time_one_gpu_s": alone_s,
                "gpus": gpus,
                "gpu_seconds": round(lost, 1),
                "cost": cost_of(view, lost),
            },
        )
