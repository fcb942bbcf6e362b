"""The moment at which the run will not fit any more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.detect.memory.growth import growth_of, used_growth
from trainbudget.engine.detect.memory.lengths import LengthForecast, length_forecast
from trainbudget.engine.detect.memory.meeting import (
    GROWTH_EVIDENCE,
    SPANS,
    Kept,
    Meeting,
    growth_evidence,
    meeting,
    rest_meeting,
)
from trainbudget.engine.detect.memory.standing import STANDING_EVIDENCE, Standing, gib, limit_of, standing
from trainbudget.engine.forecast import pace_s
from trainbudget.engine.timeline import Timeline
from trainbudget.engine.tracks.device import DeviceTrack
from trainbudget.findings import CodeRecord, Forecast, Route, Severity, Threshold
from trainbudget.quantities import duration


class OomForecast(BaseDetector):
    """The run will not fit any more before its end."""

    record = CodeRecord(
        code="oom_forecast",
        family="memory",
        severity=Severity.WARNING,
        title="The GPU will run out of memory",
        condition="A significant trend, or a batch that is known to come, meets the limit within the rest of the run. "
        "Critical when it is less than 10 minutes away.",
        silent="Without a limit (a MIG slice of unknown size), without a trend, when the run ends before; beyond 5 times the "
        "span over which the trend was seen; in a first epoch that ends, as planned, well before the limit could be met.",
        evidence={
            **STANDING_EVIDENCE,
            **GROWTH_EVIDENCE,
            "transient_bytes": "how far a step rises above its level at rest",
            "source": "rest: growth at rest; device: growth of the device's use; lengths: a longer batch",
            "tokens": "length of the longest batch",
            "predicted_bytes": "peak at that length",
            "predicted_low_bytes": "low end of its 90 % interval",
            "predicted_high_bytes": "high end of its 90 % interval",
        },
        thresholds=(
            *SPANS,
            Threshold(name="critical_s", default=600.0, unit="s", reason="time to save a checkpoint and stop by hand"),
        ),
        levers=("L09", "L10", "L37"),
        route=Route.PAGE,
        runbook="Save a checkpoint before the forecast step. With memory_leak beside it, restart from there after the fix; with "
        "long batches, cap the length or lower the micro-batch and raise accumulation.",
    )
    every_s = 5.0
    clear_s = 120.0

    def __init__(self) -> None:
        self._kept = Kept()

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        if not timeline.run.training or not timeline.run.started:
            return
        for device in timeline.owned:
            yield from self._growth(device, view) or self._lengths(device, view)

    def _growth(self, device: DeviceTrack, view: View) -> list[Signal]:
        timeline, track = view.timeline, device.memory
        if track.lines == 0:
            return list(self._device_growth(device, view))
        growing = growth_of(track, timeline)
        if growing is None:
            return []
        kept = self._kept.get(device.index, growing, timeline.now_s)
        return kept if kept is not None else self._kept.put(device.index, growing, timeline.now_s, self._at_rest(device, view))

    def _at_rest(self, device: DeviceTrack, view: View) -> list[Signal]:
        timeline, track = view.timeline, device.memory
        found = rest_meeting(device, view, self.record)
        if found is None:
            return []
        growth, met, now = found
        if met is None or not met.due or not met.within_run:
            return []
        evidence = {
            **now.evidence(),
            **growth_evidence(growth),
            "transient_bytes": round(track.transient_bytes),
            "source": "rest",
        }
        return [self._signal(device, met, evidence, view, timeline)]

    def _device_growth(self, device: DeviceTrack, view: View) -> Iterator[Signal]:
        """Nobody reads the allocator: the device's use is all there is. A cache may stand still at any moment, so it must
        have grown for longer and is not drawn as far."""
        timeline = view.timeline
        growth = used_growth(device.memory)
        if growth is None:
            return
        limit, _ = limit_of(device, timeline)
        least = 2.0 * view.limit(self.record, "least_steps")
        now = standing(device, timeline)
        met = meeting(growth, limit, timeline, error_bytes=4.0 * now.room_error, least_steps=least, least_s=60.0, reach=2.0)
        if met is None or not met.due or not met.within_run:
            return
        evidence = {**now.evidence(), **growth_evidence(growth), "source": "device"}
        yield self._signal(device, met, evidence, view, timeline)

    def _signal(self, device: DeviceTrack, met: Meeting, evidence: dict[str, object], view: View, timeline: Timeline) -> Signal:
        soon = met.ahead_s is not None and met.ahead_s <= view.limit(self.record, "critical_s")
        now_step = timeline.run.last_step or 0
        when = f" (about {duration(met.ahead_s)})" if met.ahead_s is not None else ""
        # Counted from a step, not from "now": the sentence is read again after the run.
        return Signal(
            "oom_forecast",
            gpu=device.index,
            severity=Severity.CRITICAL if soon else Severity.WARNING,
            summary=f"out of memory at step {met.at_step:.0f}, {met.at_step - now_step:.0f} steps{when} after step {now_step}",
            evidence=evidence,
            forecast=met.forecast,
        )

    def _lengths(self, device: DeviceTrack, view: View) -> Iterator[Signal]:
        found = length_forecast(device, view.timeline)
        if found is None:
            return
        now = standing(device, view.timeline)
        if now.capacity is None or found.value <= now.capacity:
            return
        yield length_signal("oom_forecast", device, found, now, view.timeline)


def length_signal(code: str, device: DeviceTrack, found: LengthForecast, now: Standing, timeline: Timeline) -> Signal:
    """A batch of known length will not fit."""
    sure = now.capacity is not None and found.low > now.capacity
    at_s = None
    pace = pace_s(timeline)
    if found.at_step is not None and pace is not None:
        at_s = round(timeline.now_s + max(0.0, found.at_step - (timeline.run.last_step or 0)) * pace, 1)
    where = f" at step {found.at_step:.0f}" if found.at_step is not None else ""
    return Signal(
        code,
        gpu=device.index,
        cause=None,
        severity=Severity.CRITICAL if sure and code == "oom_predicted" else Severity.WARNING,
        summary=f"a batch of {found.tokens:.0f} tokens{where} will need {gib(found.value)}, {gib(now.capacity)} can be had",
        evidence={
            **now.evidence(),
            "source": "lengths",
            "tokens": found.tokens,
            "predicted_bytes": round(found.value),
            "predicted_low_bytes": round(found.low),
            "predicted_high_bytes": round(found.high),
        },
        forecast=None if found.at_step is None else Forecast(at_step=found.at_step, at_s=at_s),
    )
