"""A GPU that the job could use and never does."""

from __future__ import annotations

from collections.abc import Iterable

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.detect.devices import fresh
from trainbudget.engine.timeline import Timeline
from trainbudget.engine.tracks.device import CONTEXT_BYTES, DeviceTrack
from trainbudget.engine.tracks.steps import MIN_STEPS
from trainbudget.findings import CodeRecord, Route, Severity, Threshold
from trainbudget.quantities import money


class UnusedGpu(BaseDetector):
    """Steps go on and one of the GPUs takes no part in them."""

    record = CodeRecord(
        code="unused_gpu",
        family="waiting",
        severity=Severity.WARNING,
        title="A GPU is paid for and not used",
        condition="After 20 steps and 2 minutes of training a GPU that belongs to the process, or is visible to the job, has "
        "never shown 5 % utilization (or more power than before training, where utilization is not told) and holds no more than "
        "a context.",
        silent="Where the device tells neither utilization nor power; when it works for somebody else; when it has worked once.",
        evidence={
            "idle_s": "seconds of idleness so far",
            "memory_used_bytes": "held on it",
            "owned": "whether the process itself owns it",
            "cost_per_hour": "its price, where known",
        },
        thresholds=(
            Threshold(
                name="for_s", default=120.0, unit="s", reason="a card that joins in only later does so with the first steps"
            ),
        ),
        levers=("L35",),
        route=Route.TICKET,
        runbook="Use it (torchrun --nproc_per_node, devices=) or do not ask for it (CUDA_VISIBLE_DEVICES, a smaller "
        "instance). If it is the only one, the model was not moved to it.",
    )
    every_s = 15.0

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        run = timeline.run
        if not run.training or timeline.steps.session_steps < MIN_STEPS:
            return
        begun_s = run.session.first_step_end_s if run.session is not None else None
        if begun_s is None:
            return
        for device in timeline.charged:
            if (device.owned and device.active) or not _never_worked(timeline, device):
                continue
            idle_s = timeline.since(max(begun_s, device.idle_since_s or begun_s))
            if idle_s < view.limit(self.record, "for_s"):
                continue
            price = timeline.price.per_gpu_hour if timeline.price is not None else None
            currency = timeline.price.currency if timeline.price is not None else None
            used = device.last.memory_used_bytes if device.last is not None else None
            cost = f", {money(price, currency)} an hour" if price is not None else ""
            yield Signal(
                "unused_gpu",
                gpu=device.index,
                summary=f"GPU {device.index} has done nothing in {timeline.steps.session_steps} steps{cost}",
                evidence={
                    "idle_s": round(idle_s, 1),
                    "memory_used_bytes": used,
                    "owned": device.owned,
                    "cost_per_hour": price,
                },
            )


def _never_worked(timeline: Timeline, device: DeviceTrack) -> bool:
    if device.idle_since_s is None or not device.unused or not fresh(timeline, device):
        return False
    used = device.last.memory_used_bytes if device.last is not None else None
    return used is None or used <= CONTEXT_BYTES or not device.owned
