"""The driver moves device memory to the host instead of failing: WSL and Windows."""

from __future__ import annotations

from collections.abc import Iterable

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.detect.memory.standing import GIB, STANDING_EVIDENCE, gib, standing
from trainbudget.engine.timeline import Timeline
from trainbudget.engine.tracks.device import DeviceTrack
from trainbudget.findings import CodeRecord, Route, Severity, Threshold

#: Platforms whose driver does that (NVIDIA's "CUDA - Sysmem Fallback Policy", driver 536.40 and later).
PLATFORMS = ("windows", "wsl")
#: Steps that must be slow: one long batch is not a spill.
LEAST_STEPS = 3


def slowed(timeline: Timeline, *, steps: int = LEAST_STEPS) -> float | None:
    """Median of the newest steps over that of the first steady ones, or None before either is known."""
    baseline, recent = timeline.steps.baseline_s(), timeline.steps.recent
    if not baseline or len(recent) < steps:
        return None
    newest = sorted(recent[-place].duration_s for place in range(1, steps + 1))
    return newest[len(newest) // 2] / baseline


class SystemMemorySpill(BaseDetector):
    """Device memory is full, nothing fails, and every step is several times slower."""

    record = CodeRecord(
        code="system_memory_spill",
        family="memory",
        severity=Severity.WARNING,
        title="The driver moves GPU memory to the host",
        condition="On Windows or WSL: the device is full (less than 2 % or 256 MiB free), or more is reserved than it has; steps "
        "take 3 times as long as they did, and no allocation failed.",
        silent="On Linux and anywhere else (the driver does not do that there); when the allocator flushes (memory_pressure); "
        "before a steady step time is known.",
        evidence={
            **STANDING_EVIDENCE,
            "free_bytes": "free on the device",
            "slow_ratio": "step time now over the first steady steps",
            "step_time_s": "median of the newest steps",
            "platform": "of the host",
        },
        thresholds=(
            Threshold(name="free_ratio", default=0.02, unit="ratio", reason="the driver starts before the last block is taken"),
            Threshold(name="free_bytes", default=0.25 * GIB, unit="bytes", reason="the same, on small cards"),
            Threshold(name="slow_ratio", default=3.0, unit="ratio", reason="reports tell of 3 to 20 times; batches vary less"),
        ),
        levers=("L09", "L10", "L37"),
        route=Route.TICKET,
        runbook="NVIDIA control panel: CUDA sysmem fallback policy = prefer no fallback, then the run fails at once where it "
        "does not fit. Lower the batch or the length until it fits.",
    )
    every_s = 10.0
    clear_s = 60.0

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        host = timeline.header.host
        if host is None or host.platform not in PLATFORMS or not timeline.run.training:
            return
        slow = slowed(timeline)
        if slow is None or slow < view.limit(self.record, "slow_ratio"):
            return
        for device in timeline.owned:
            track = device.memory
            if track.retries and track.retries[-1][2] > (track.retries_begin or 0.0) + len(timeline.steps.recent) * 0.1:
                continue  # it flushes: that is slow for a reason of its own
            if not self._full(device, view):
                continue
            yield Signal(
                "system_memory_spill",
                gpu=device.index,
                summary=f"steps take {slow:.1f} times as long since the device is full: the driver moves data to "
                f"the host ({gib(device.last.memory_used_bytes if device.last is not None else None)} in use)",
                evidence={
                    **standing(device, timeline).evidence(),
                    "free_bytes": device.last.memory_free_bytes if device.last is not None else None,
                    "slow_ratio": round(slow, 2),
                    "step_time_s": round(slow * (timeline.steps.baseline_s() or 0.0), 3),
                    "platform": host.platform,
                },
            )

    def _full(self, device: DeviceTrack, view: View) -> bool:
        total = device.info.memory_total_bytes
        if total is None or device.last is None:
            return False
        own = device.memory.last
        if own is not None and own.reserved_bytes is not None and own.reserved_bytes > total:
            return True
        free = device.last.memory_free_bytes
        if free is None and device.last.memory_used_bytes is not None:
            free = total - device.last.memory_used_bytes - (device.last.memory_reserved_bytes or 0.0)
        least = max(view.limit(self.record, "free_ratio") * total, view.limit(self.record, "free_bytes"))
        return free is not None and free < least
