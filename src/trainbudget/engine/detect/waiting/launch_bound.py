"""The GPU runs out of work inside the steps: the host cannot launch kernels fast enough."""

from __future__ import annotations

from collections.abc import Iterable

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.detect.devices import steps_utilization
from trainbudget.engine.timeline import Timeline
from trainbudget.engine.tracks.step_shares import StepShares
from trainbudget.findings import CodeRecord, Route, Severity, Threshold
from trainbudget.quantities import percent

#: Above this share the wait for data is the cause, not the launches.
WAIT_RATIO = 0.10
#: ... and these, once raised, explain an idle GPU inside the steps.
UPSTREAM = frozenset(
    {
        "input_bound",
        "optimizer_offload",
        "naive_model_parallel",
        "straggler",
        "gc_pause",
        "thermal_throttle",
        "power_cap",
        "communication_bound",
        "memory_fragmentation",
        "memory_pressure",
        "system_memory_spill",
        "gpu_unavailable",
        "sampler_stalled",
    }
)
#: A step this close to its budget is as planned, however idle the GPU.
PLANNED_RATIO = 1.1
#: One Python thread at full speed shows about one core.
ONE_CORE = 0.85


class LaunchBound(BaseDetector):
    """Steps of small kernels: the GPU waits for the host although no data is missing."""

    record = CodeRecord(
        code="launch_bound",
        family="waiting",
        severity=Severity.INFO,
        title="The host cannot feed the GPU with kernels",
        condition="The GPU is idle in 30 % of the step or more while the wait for data is below 10 % and nothing upstream "
        "explains it. Warning from 50 % on when the process keeps one core busy.",
        silent="When the step takes no longer than planned; where neither the GPU's time in a step nor its utilization is "
        "known; when an optimizer on the CPU, a split model, slow input, communication or memory trouble explains it.",
        evidence={
            "idle_ratio": "share of the step in which the GPU was idle",
            "step_time_s": "median step",
            "process_cpu_ratio": "cores that the training process keeps busy, where known",
            "wait_ratio": "share of the time that waits for data",
        },
        thresholds=(
            Threshold(
                name="info_ratio", default=0.30, unit="ratio", reason="a step's own synchronisations leave gaps of up to 20 %"
            ),
            Threshold(name="warning_ratio", default=0.50, unit="ratio", reason="half of the price buys waiting for Python"),
        ),
        levers=("L15", "L08", "L43"),
        route=Route.TICKET,
        runbook="Give the GPU larger pieces: a larger micro-batch, torch.compile or CUDA graphs, fused optimizers; remove "
        ".item() and print in the loop.",
    )
    every_s = 30.0
    hold_s = 25.0

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        if self._busy_now(view):
            return
        shares = timeline.step_shares.current()
        if shares is None or not timeline.owned or not timeline.run.training:
            return
        idle = _idle_ratio(timeline, shares)
        if idle is None or idle < view.limit(self.record, "info_ratio") or (shares.wait_ratio or 0.0) > WAIT_RATIO:
            return
        if UPSTREAM & view.raised or _as_planned(timeline, shares):
            return
        if (shares.optimizer_ratio or 0.0) > 0.5 * idle or (shares.communication_ratio or 0.0) > 0.5 * idle:
            return
        cpu = _process_cpu(timeline)
        sure = cpu is not None and cpu >= ONE_CORE
        if cpu is not None and cpu < 0.5:
            return  # the host is idle too: it waits for something else than its own speed
        yield Signal(
            "launch_bound",
            severity=Severity.WARNING if sure and idle >= view.limit(self.record, "warning_ratio") else Severity.INFO,
            summary=f"the GPU idles {percent(idle)} of each step with its data at hand: the host launches too slowly",
            evidence={
                "idle_ratio": round(idle, 3),
                "step_time_s": shares.step_s,
                "process_cpu_ratio": None if cpu is None else round(cpu, 2),
                "wait_ratio": None if shares.wait_ratio is None else round(shares.wait_ratio, 4),
            },
        )

    def _busy_now(self, view: View) -> bool:
        """Whether the newest step, else the last minute, was busy enough: in a run bound by launches every step is idle."""
        last = view.timeline.last_step
        if last is None:
            return True
        enough = 1.0 - view.limit(self.record, "info_ratio")
        if last.busy_s is not None:
            return last.busy_s >= enough * last.duration_s
        values = [d.utilization_last_minute() for d in view.timeline.owned]
        return any(v is not None and v >= enough for v in values)


def _idle_ratio(timeline: Timeline, shares: StepShares) -> float | None:
    if shares.busy_ratio is not None:
        return 1.0 - shares.busy_ratio
    utilization = steps_utilization(timeline)
    if utilization is None:
        return None
    return max(0.0, 1.0 - (shares.wait_ratio or 0.0) - max(utilization))


def _as_planned(timeline: Timeline, shares: StepShares) -> bool:
    """Whether the steps are as quick as the budget says: then an idle GPU was known beforehand."""
    step = timeline.budget.get("step_time_s")
    if step is not None:
        return shares.step_s <= max(step.high or 0.0, PLANNED_RATIO * step.value)
    return False


def _process_cpu(timeline: Timeline) -> float | None:
    last = timeline.host.last
    return last.process_cpu_ratio if last is not None else None
