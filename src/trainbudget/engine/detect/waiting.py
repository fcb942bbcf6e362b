"""Waiting: GPUs that are paid for and have nothing to do."""

from __future__ import annotations

from collections.abc import Iterable

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.reporting import data_wait_ratio
from trainbudget.engine.tracks.device import DeviceTrack
from trainbudget.findings import CodeRecord, Route, Severity, Threshold


class GpuIdle(BaseDetector):
    """A GPU of a run that should be training does nothing."""

    record = CodeRecord(
        code="gpu_idle",
        family="waiting",
        severity=Severity.WARNING,
        title="A GPU is idle",
        condition="Utilization below 5 % with no step for 10 minutes while training is on; critical after 30 minutes.",
        silent="While steps come, whatever the utilization; in start-up (slow_start); after the end (finished_holding_gpu); "
        "where the device does not answer.",
        evidence={"idle_s": "seconds of idleness", "utilization_ratio": "mean over that time"},
        thresholds=(
            Threshold(name="utilization_ratio", default=0.05, unit="ratio", reason="a desktop or a monitor alone shows 0-4 %"),
            Threshold(name="for_s", default=600.0, unit="s", reason="evaluations and checkpoint uploads take minutes"),
            Threshold(name="critical_s", default=1800.0, unit="s", reason="half an hour is nobody's pause"),
        ),
        levers=(),
        route=Route.TICKET,
        runbook="See what the process does (py-spy dump, stacks.txt). Nothing is computed, everything is paid.",
    )

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        run = timeline.run
        if not run.training or not run.started or run.last_progress_s is None:
            return
        quiet_s = timeline.since(run.last_progress_s)
        if quiet_s < view.limit(self.record, "for_s"):
            return
        for device in timeline.owned:
            idle_s = timeline.since(device.idle_since_s) if device.idle_since_s is not None else 0.0
            if min(idle_s, quiet_s) < view.limit(self.record, "for_s"):
                continue
            critical = min(idle_s, quiet_s) >= view.limit(self.record, "critical_s")
            yield Signal(
                "gpu_idle",
                gpu=device.index,
                severity=Severity.CRITICAL if critical else Severity.WARNING,
                summary=f"GPU {device.index} idle for {min(idle_s, quiet_s) / 60:.0f} min, no step in that time",
                evidence={"idle_s": round(min(idle_s, quiet_s), 1), "utilization_ratio": _mean(device, idle_s)},
            )


def _mean(device: DeviceTrack, seconds: float) -> float | None:
    newest = device.window[-1].t_s if device.window else 0.0
    value = device.utilization_mean(newest - seconds, minimum=1)
    return None if value is None else round(value, 3)


class InputBound(BaseDetector):
    """The GPU waits for data."""

    record = CodeRecord(
        code="input_bound",
        family="waiting",
        severity=Severity.INFO,
        title="The GPU waits for data",
        condition="Data wait is more than 10 % of the steps' wall time (warning above 30 %) and the GPU is idle in it.",
        silent="In warm-up, before 20 steps, at epoch starts (epoch_start_overhead), while the GPU is busy in the wait.",
        evidence={
            "wait_ratio": "share of the steps' wall time",
            "wait_s": "mean wait before one step",
            "step_time_s": "median step",
            "loader_workers": "loader processes",
            "cpu_ratio": "load of the whole machine",
        },
        thresholds=(
            Threshold(name="info_ratio", default=0.10, unit="ratio", reason="below it a faster loader is not worth the work"),
            Threshold(name="warning_ratio", default=0.30, unit="ratio", reason="a third of the money buys waiting"),
        ),
        causes=("workers", "cpu", "storage", "cold_cache", "tokenize", "burst"),
        levers=("dataloader_workers",),
        route=Route.TICKET,
        runbook="Raise the number of loader workers while the CPU has room; else move work out of the loader.",
    )

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        records = [r for r in timeline.steps.window() if r.wait_s is not None]
        if not timeline.steps.enough(records):
            return
        ratio = data_wait_ratio(timeline)
        if ratio is None or ratio < view.limit(self.record, "info_ratio"):
            return
        count = sum(r.count for r in records)
        wait_s = sum((r.wait_s or 0.0) * r.count for r in records) / count
        waits = sorted(r.wait_s or 0.0 for r in records)
        if waits[len(waits) // 2] < 0.25 * wait_s:
            return  # a few long waits, not a steady one: other codes say why
        since_s = timeline.now_s - 120.0
        idle = [1.0 - u for d in timeline.owned if (u := d.utilization_mean(since_s)) is not None]
        if idle and min(idle) < 0.5 * ratio:
            return  # the GPU works through the wait: nothing is lost
        host = timeline.host.last
        cpu = timeline.host.cpu_ratio(since_s)
        workers = host.loader_workers if host is not None else None
        yield Signal(
            "input_bound",
            cause="cpu" if cpu is not None and cpu > 0.85 else "workers" if workers is not None else None,
            severity=Severity.WARNING if ratio >= view.limit(self.record, "warning_ratio") else Severity.INFO,
            summary=f"the GPU waits for data {ratio:.0%} of the time ({wait_s:.2g} s before each step)",
            evidence={
                "wait_ratio": round(ratio, 4),
                "wait_s": round(wait_s, 4),
                "step_time_s": timeline.steps.median_s(),
                "loader_workers": workers,
                "cpu_ratio": None if cpu is None else round(cpu, 3),
            },
        )


DETECTORS = (GpuIdle, InputBound)
