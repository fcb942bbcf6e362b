"""Where a growth meets the limit, and whether that is worth a word yet."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainbudget.engine.detect.base import Signal, View
from trainbudget.engine.detect.memory.growth import Growth, growth_of
from trainbudget.engine.detect.memory.standing import Standing, standing
from trainbudget.engine.epochs import planned_epochs
from trainbudget.engine.forecast import REACH, pace_s
from trainbudget.engine.timeline import Timeline
from trainbudget.engine.tracks.device import DeviceTrack
from trainbudget.findings import CodeRecord, Forecast, Threshold

MIB = float(2**20)
#: Of an epoch, after its end: time to see that the growth was not given back, and to save.
EPOCH_MARGIN = 0.25
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
    epochs_seen: int | None = None,
) -> Meeting | None:
    """When `growth` has used up what the level may rise to (`room_bytes`), or None where there is no limit to meet.

    A short observation may only look a short way ahead: twice its span below 2 x `least_steps`, then `reach` times.
    `epochs_seen`: of so many epochs a level at rest is known; None where levels at rest are not known at all.
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
        due = due and not _may_be_given_back(timeline, low, epochs_seen)
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


def _may_be_given_back(timeline: Timeline, low_step: float, epochs_seen: int | None) -> bool:
    """Whether the first epoch ends, where its length is known, well before the limit can be met: outputs kept for an epoch's
    metrics are freed then, and until then look like a leak. In the second epoch it is known."""
    run = timeline.run
    begin_s = run.session.begin_s if run.session is not None else 0.0
    first = next((e for e in run.epochs if e.begin_s >= begin_s), None)
    if first is None or first.first_step is None or run.epoch is None or (epochs_seen or 1) > 1:
        return False
    if run.epoch is not first or first.end_s is not None:
        return epochs_seen is not None  # it has ended this moment: the next line tells
    total, epochs = timeline.steps_total, planned_epochs(timeline.header.settings)
    if total is None or epochs is None or epochs <= 1.0:
        return False
    return low_step > first.first_step + (1.0 + EPOCH_MARGIN) * total / epochs


SPANS = (
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
        epochs_seen=len(device.memory.epochs),
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


GROWTH_EVIDENCE = {
    "bytes_per_step": "growth at rest, median slope",
    "bytes_per_step_low": "low end of its 90 % interval",
    "bytes_per_step_high": "high end of its 90 % interval",
    "grown_bytes": "grown since the session settled",
    "span_steps": "steps over which it was seen",
    "significance_z": "Mann-Kendall z of the trend",
    "by": "steps: grows within epochs; epochs: the lowest level of each epoch grows",
}
