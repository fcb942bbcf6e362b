"""The optimizer runs on the CPU and the GPU waits for it in every step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.detect.devices import steps_utilization
from trainbudget.engine.tracks.step_shares import StepShares
from trainbudget.findings import CodeRecord, Route, Severity, Threshold
from trainbudget.quantities import duration, percent


class OptimizerOffload(BaseDetector):
    """The GPU is idle in the optimizer's part of the step."""

    record = CodeRecord(
        code="optimizer_offload",
        family="waiting",
        severity=Severity.WARNING,
        title="The GPU waits for an optimizer on the CPU",
        condition="The optimizer takes 20 % of the step or more and the GPU is idle in most of it; or the settings offload the "
        "optimizer and the GPU is idle in 20 % of the step. Info below 40 %.",
        silent="Before 20 steady steps; where neither the GPU's idleness in a step nor its utilization is known; where the "
        "optimizer is slow and the GPU is busy in it.",
        evidence={
            "optimizer_ratio": "share of the step in the optimizer, where measured",
            "idle_ratio": "share of the step in which the GPU was idle",
            "step_time_s": "median step",
            "offload_configured": "whether the settings offload the optimizer",
        },
        thresholds=(
            Threshold(
                name="ratio",
                default=0.20,
                unit="ratio",
                reason="on a GPU it touches each state once, a few per cent of a step; only one on the CPU takes a fifth",
            ),
            Threshold(name="warning_ratio", default=0.40, unit="ratio", reason="most of the hour's price buys waiting"),
        ),
        levers=("L23", "L43"),
        route=Route.TICKET,
        runbook="Take the offload off when the states fit (see underused_memory), else shard them over GPUs, use an 8-bit "
        "optimizer, or bind the CPU cores and raise the accumulation so that the optimizer runs less often.",
    )
    every_s = 15.0

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        last = timeline.last_step
        if last is None or (not last.event.optimizer_s and not self._configured(view)):
            return
        shares = timeline.step_shares.current()
        if shares is None or not timeline.run.training:
            return
        configured = self._configured(view)
        optimizer = shares.optimizer_ratio
        limit = view.limit(self.record, "ratio")
        if (optimizer is None or optimizer < limit) and not configured:
            return
        utilization = steps_utilization(timeline)
        idle = _idle_ratio(shares, None if utilization is None else utilization[0])
        if idle is None:
            return
        # What is idle beyond the optimizer's own time has other reasons; without its time the whole is put down to it.
        wasted = min(idle, optimizer) if optimizer is not None else idle
        if wasted < max(limit, 0.5 * (optimizer or 0.0)):
            return
        yield Signal(
            "optimizer_offload",
            severity=Severity.WARNING if wasted >= view.limit(self.record, "warning_ratio") else Severity.INFO,
            summary=f"the GPU waits {percent(wasted)} of each step for an optimizer on the CPU "
            f"({duration(wasted * shares.step_s)})",
            evidence={
                "optimizer_ratio": None if optimizer is None else round(optimizer, 3),
                "idle_ratio": round(idle, 3),
                "step_time_s": shares.step_s,
                "offload_configured": configured,
            },
        )

    def _configured(self, view: View) -> bool:
        timeline = view.timeline
        return offload_configured(
            timeline.header.settings or {}, timeline.model.optimizer if timeline.model is not None else None
        )


def _idle_ratio(shares: StepShares, utilization: float | None) -> float | None:
    """Share of a step in which the GPU is idle: measured, else from its utilization less the wait for data."""
    if shares.busy_ratio is not None:
        return 1.0 - shares.busy_ratio
    if utilization is None:
        return None
    wait = shares.wait_ratio or 0.0
    return max(0.0, 1.0 - wait - utilization) / max(1e-9, 1.0 - wait)


def offload_configured(settings: Mapping[str, Any], optimizer: str | None) -> bool:
    """Whether the settings put the optimizer on the host: DeepSpeed, FSDP, Lightning's strategies, a CPU optimizer."""
    deepspeed = settings.get("deepspeed")
    zero = deepspeed.get("zero_optimization") if isinstance(deepspeed, Mapping) else None
    target = zero.get("offload_optimizer") if isinstance(zero, Mapping) else None
    if isinstance(target, Mapping) and target.get("device") in ("cpu", "nvme"):
        return True
    fsdp = settings.get("fsdp_config")
    if isinstance(fsdp, Mapping) and fsdp.get("cpu_offload") is True:
        return True
    strategy = settings.get("strategy")
    if isinstance(strategy, str) and "offload" in strategy:
        return True
    return optimizer is not None and "cpu" in optimizer.lower()
