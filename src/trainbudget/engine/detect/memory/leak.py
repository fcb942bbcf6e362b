"""Memory that grows at rest, and the moment at which it will not fit any more."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.detect.memory.growth import Growth, growth_of, used_growth
from trainbudget.engine.detect.memory.lengths import LengthForecast, length_forecast
from trainbudget.engine.detect.memory.standing import STANDING_EVIDENCE, Standing, gib, limit_of, standing
from trainbudget.engine.forecast import REACH, pace_s
from trainbudget.engine.timeline import Timeline
from trainbudget.engine.tracks.device import DeviceTrack
from trainbudget.findings import CodeRecord, Forecast, Route, Severity, Threshold

MIB = float(2**20)
#: Seconds for which an unchanged growth is not judged again.
KEEP_S = 20.0


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where a growth meets the limit. `due` = close enough, and seen for long enough, to be said."""

    growth: Growth
    forecast: Forecast
    at_step: float
    ahead_s: float | None
    within_run: bool
    due: bool


def meeting(
    growth: Growth,
    room_bytes: float | None,
    timeline: Timeline,
    *,
    error_bytes: float,
    least_steps: float,
    least_s: float,
    reach: float = REACH,
) -> Meeting | None:
    """When `growth` has used up what the level may rise to (`room_bytes`), or None where there is no limit to meet.

    A short observation may only look a short way ahead: twice its span below 2 x `least_steps`, then `reach` times.
    """
    if room_bytes is None:
        return None
    met = growth.trend.reaches(room_bytes, error=error_bytes)
    now_step = timeline.run.last_step
    if met is None or now_step is None:
        return None
    at, low, high = met
    at, low = max(at, float(now_step)), max(low, float(now_step))
    total = timeline.steps_total
    pace = pace_s(timeline)
    ahead = at - now_step
    if growth.span_steps < least_steps or growth.span_s < least_s:
        due = False
    else:
        due = ahead <= growth.span_steps * (2.0 if growth.span_steps < 2.0 * least_steps else reach)
    return Meeting(
        growth=growth,
        forecast=Forecast(
            at_step=round(at, 1),
            at_s=None if pace is None else round(timeline.now_s + ahead * pace, 1),
            low=round(low, 1),
            high=round(high, 1) if math.isfinite(high) else None,
        ),
        at_step=at,
        ahead_s=None if pace is None else ahead * pace,
        within_run=total is None or at <= total,
        due=due,
    )


_SPANS = (
    Threshold(
        name="least_steps",
        default=50.0,
        unit="steps",
        reason="below it caches, workspaces and buckets that fill in the first steps look like a trend",
    ),
    Threshold(name="least_s", default=5.0, unit="s", reason="steps of a millisecond: a few hundred of them say nothing yet"),
)


def rest_meeting(device: DeviceTrack, view: View, record: CodeRecord) -> tuple[Growth, Meeting | None, Standing] | None:
    """The growth at rest of one device and where it ends."""
    growth = growth_of(device.memory, view.timeline)
    if growth is None:
        return None
    now = standing(device, view.timeline)
    room = None if now.capacity is None else now.capacity - device.memory.transient_bytes
    met = meeting(
        growth,
        room,
        view.timeline,
        error_bytes=now.room_error,
        least_steps=view.limit(record, "least_steps"),
        least_s=view.limit(record, "least_s"),
    )
    return growth, met, now


class Kept:
    """The signals of the last look at each device: a growth that is still the same object says the same for a while."""

    def __init__(self) -> None:
        self._by_gpu: dict[int, tuple[Growth, float, list[Signal]]] = {}

    def get(self, gpu: int, growth: Growth, now_s: float) -> list[Signal] | None:
        kept = self._by_gpu.get(gpu)
        return kept[2] if kept is not None and kept[0] is growth and now_s - kept[1] < KEEP_S else None

    def put(self, gpu: int, growth: Growth, now_s: float, signals: list[Signal]) -> list[Signal]:
        self._by_gpu[gpu] = (growth, now_s, signals)
        return signals


def growth_evidence(growth: Growth) -> dict[str, object]:
    line = growth.trend
    return {
        "bytes_per_step": round(line.slope),
        "bytes_per_step_low": round(line.low),
        "bytes_per_step_high": round(line.high),
        "grown_bytes": round(growth.grown_bytes),
        "span_steps": round(growth.span_steps),
        "significance_z": round(line.z, 1),
        "by": growth.by,
    }


_GROWTH_EVIDENCE = {
    "bytes_per_step": "growth at rest, median slope",
    "bytes_per_step_low": "low end of its 90 % interval",
    "bytes_per_step_high": "high end of its 90 % interval",
    "grown_bytes": "grown since the session settled",
    "span_steps": "steps over which it was seen",
    "significance_z": "Mann-Kendall z of the trend",
    "by": "steps: grows within epochs; epochs: the lowest level of each epoch grows",
}


class MemoryLeak(BaseDetector):
    """What is held between steps grows and does not come back."""

    record = CodeRecord(
        code="memory_leak",
        family="memory",
        severity=Severity.WARNING,
        title="GPU memory leaks",
        condition="What is allocated between steps grows with a significant trend (Mann-Kendall z >= 3.3) that still lasts; "
        "warning where it meets the limit within the run (or the limit is unknown), information where it does not.",
        silent="In the first 5 steps of a session; for peaks that follow the length of the batch; where the growth of an epoch "
        "is given back at its end; where the allocator is not read (its cache grows by itself).",
        evidence={**STANDING_EVIDENCE, **_GROWTH_EVIDENCE},
        thresholds=(
            *_SPANS,
            Threshold(
                name="sure_steps",
                default=200.0,
                unit="steps",
                reason="a growth that does not meet the limit is only worth a word when it has lasted",
            ),
        ),
        levers=("L28",),
        route=Route.TICKET,
        runbook="Look for tensors that outlive their step: losses or outputs appended to a list without .detach() or .item(), "
        "metrics that keep predictions, retain_graph, hooks that are registered again and again. If it climbs once an epoch, "
        "look at what runs once an epoch. torch.cuda.memory._record_memory_history names the lines.",
    )
    every_s = 5.0
    clear_s = 120.0

    def __init__(self) -> None:
        self._kept = Kept()

    def check(self, view: View) -> Iterable[Signal]:
        if not view.timeline.run.training:
            return
        now_s = view.timeline.now_s
        for device in view.timeline.owned:
            growth = growth_of(device.memory, view.timeline)
            if growth is None:
                continue
            kept = self._kept.get(device.index, growth, now_s)
            yield from kept if kept is not None else self._kept.put(device.index, growth, now_s, self._signals(device, view))

    def _signals(self, device: DeviceTrack, view: View) -> list[Signal]:
        found = rest_meeting(device, view, self.record)
        if found is None:
            return []
        growth, met, now = found
        meets = met is not None and met.due and met.within_run
        if not meets and growth.span_steps < view.limit(self.record, "sure_steps"):
            return []
        where = f", the limit is met at step {met.at_step:.0f}" if met is not None and meets else ""
        return [
            Signal(
                "memory_leak",
                gpu=device.index,
                severity=Severity.WARNING if meets or now.limit is None else Severity.INFO,
                summary=f"memory at rest grows by {growth.bytes_per_step / MIB:.2g} MiB a step{where}",
                evidence={**now.evidence(), **growth_evidence(growth)},
                forecast=met.forecast if met is not None and meets else None,
            )
        ]


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
        "span over which the trend was seen.",
        evidence={
            **STANDING_EVIDENCE,
            **_GROWTH_EVIDENCE,
            "transient_bytes": "how far a step rises above its level at rest",
            "source": "rest: growth at rest; device: growth of the device's use; lengths: a longer batch",
            "tokens": "length of the longest batch",
            "predicted_bytes": "peak at that length",
            "predicted_low_bytes": "low end of its 90 % interval",
            "predicted_high_bytes": "high end of its 90 % interval",
        },
        thresholds=(
            *_SPANS,
            Threshold(name="critical_s", default=600.0, unit="s", reason="time to save a checkpoint and stop by hand"),
        ),
        levers=("L09", "L10", "L37", "L28"),
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
        left = met.at_step - (timeline.run.last_step or 0)
        when = f" in about {_span(met.ahead_s)}" if met.ahead_s is not None else ""
        return Signal(
            "oom_forecast",
            gpu=device.index,
            severity=Severity.CRITICAL if soon else Severity.WARNING,
            summary=f"out of memory{when}, at step {met.at_step:.0f} ({left:.0f} steps from now)",
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


def _span(seconds: float) -> str:
    if seconds < 120.0:
        return f"{seconds:.0f} s"
    return f"{seconds / 60.0:.0f} min" if seconds < 7200.0 else f"{seconds / 3600.0:.1f} h"
