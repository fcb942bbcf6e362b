"""The watcher itself cannot see: readings stop, or single queries vanish."""

from __future__ import annotations

from collections.abc import Iterable

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.detect.devices import everything_fails, fresh, spacing_s, stale_after_s
from trainbudget.engine.timeline import Timeline
from trainbudget.engine.tracks.device import UNSUPPORTED_CODES, DeviceTrack
from trainbudget.findings import CodeRecord, Route, Severity, Threshold


class SamplerStalled(BaseDetector):
    """No reading at all any more although time goes on: a query never returned."""

    record = CodeRecord(
        code="sampler_stalled",
        family="stuck",
        severity=Severity.WARNING,
        title="GPU readings have stopped",
        condition="No reading for 3 sample periods, at least a minute, while other facts arrive.",
        silent="When readings come and only say errors (gpu_unavailable); after the end; where none ever came.",
        evidence={"silent_s": "seconds since the last reading", "period_s": "seconds between readings before"},
        thresholds=(
            Threshold(
                name="for_s",
                default=60.0,
                unit="s",
                reason="a driver that is reloaded, or a slow query under load, answers again within a minute",
            ),
        ),
        route=Route.TICKET,
        runbook="Look for hung nvidia-smi processes and Xid messages: a driver query is blocked, training itself may be fine.",
    )

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        last_s = timeline.last_reading_s
        least_s = view.limit(self.record, "for_s")
        if last_s is None or timeline.now_s - last_s <= least_s or timeline.run.end is not None or not timeline.owned:
            return
        silent_s = timeline.since(last_s)
        if silent_s > max(least_s, *(stale_after_s(timeline, d) for d in timeline.owned)):
            yield Signal(
                "sampler_stalled",
                summary=f"no GPU reading for {silent_s:.0f} s: a driver query does not return",
                evidence={"silent_s": round(silent_s, 1), "period_s": round(spacing_s(timeline, timeline.owned[0]), 2)},
            )


#: Queries whose absence blinds detectors, and the value that shows an answer.
_WATCHED = (
    ("utilization", "utilization_ratio"),
    ("memory", "memory_used_bytes"),
    ("power", "power_w"),
    ("temperature", "temperature_c"),
    ("clock", "sm_clock_hz"),
)
#: Without these two neither idleness nor memory can be judged.
_VITAL = frozenset({"utilization", "memory"})


class MonitorDegraded(BaseDetector):
    """A query that used to be answered is not any more, while others are."""

    record = CodeRecord(
        code="monitor_degraded",
        family="self",
        severity=Severity.INFO,
        title="Some GPU values have vanished",
        condition="A query of an own device that was answered before has failed or been absent for 2 minutes (5 periods) "
        "while others are answered; warning for utilization or memory, else info. Also info: a query that fails from the "
        "start with more than 'not supported'; facts that were dropped.",
        silent="For queries that a device never supported; when nothing is answered (gpu_unavailable, sampler_stalled).",
        evidence={
            "queries": "query -> NVML code, null where it is just absent",
            "blind_s": "seconds since the first of them was answered last",
            "dropped": "facts lost by the monitor since the start",
        },
        thresholds=(Threshold(name="for_s", default=120.0, unit="s", reason="single queries fail for seconds under load"),),
        route=Route.WEEKLY,
        runbook="Run `trainbudget doctor` on the node; findings that need these values stay silent meanwhile.",
    )
    every_s = 15.0
    clear_s = 60.0

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        if timeline.run.end is not None:
            return
        for device in timeline.owned:
            if not device.errors and not _absent(device):
                continue
            yield from self._device(view, device)
        dropped = timeline.self_.dropped if timeline.self_ is not None else None
        if dropped:
            yield Signal(
                "monitor_degraded",
                summary=f"{dropped} facts were lost: the monitor could not keep up",
                evidence={"queries": {}, "blind_s": None, "dropped": dropped},
            )

    def _device(self, view: View, device: DeviceTrack) -> Iterable[Signal]:
        timeline = view.timeline
        if everything_fails(device) or not fresh(timeline, device):
            return
        limit_s = max(view.limit(self.record, "for_s"), 5.0 * spacing_s(timeline, device))
        gone: dict[str, int | None] = {}
        since = timeline.now_s
        for query, code in device.errors.items():
            began_s = device.error_since_s.get(query, timeline.now_s)
            supported = query in device.answered or code not in UNSUPPORTED_CODES
            if supported and _stands_for(timeline, began_s, limit_s):
                gone[query] = code
                since = min(since, began_s)
        for query in _absent(device):
            last_s = _answered_s(device, query)
            if query not in gone and last_s is not None and _stands_for(timeline, last_s, limit_s):
                gone[query] = device.errors.get(query)
                since = min(since, last_s)
        if not gone:
            return
        vital = any(query in _VITAL and query in device.answered for query in gone)
        yield Signal(
            "monitor_degraded",
            gpu=device.index,
            severity=Severity.WARNING if vital else Severity.INFO,
            summary=f"GPU {device.index} does not tell {', '.join(gone)}: what needs it is not watched",
            evidence={"queries": gone, "blind_s": round(timeline.since(since), 1), "dropped": None},
        )


def _stands_for(timeline: Timeline, since_s: float, limit_s: float) -> bool:
    return timeline.since(since_s) >= limit_s


def _absent(device: DeviceTrack) -> list[str]:
    """Watched queries that were answered before and are absent from the newest reading."""
    if not device.window:
        return []
    sample, merged = device.window[-1], device.last
    return [q for q, name in _WATCHED if getattr(sample, name) is None and getattr(merged, name) is not None]


def _answered_s(device: DeviceTrack, query: str) -> float | None:
    """When a query was answered last, or the oldest reading that is still remembered."""
    name = dict(_WATCHED)[query]
    for sample in reversed(device.window):
        if getattr(sample, name) is not None:
            return sample.t_s
    return device.window[0].t_s if device.window else None
