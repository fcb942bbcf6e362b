"""Growth at rest: is there a trend, across steps or across epochs, and where does it end?"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from trainbudget.engine.forecast import Trend, still_rising, trend
from trainbudget.engine.timeline import Timeline
from trainbudget.engine.tracks.memory import MemoryTrack
from trainbudget.engine.tracks.memory_records import EpochLevel

if TYPE_CHECKING:
    from trainbudget.engine.tracks.series import Point, Series

MIB = float(2**20)
#: Growth below this is allocator granularity (2 MiB blocks, 20 MiB segments), not a trend worth a word.
LEAST_GROWTH_BYTES = 48 * MIB
#: Growth must stand out of the level's own noise.
LEAST_GROWTH_NOISES = 4.0
#: Points needed for a trend: 8 rising ones reach the significance that is asked for.
LEAST_POINTS = 8
#: Epochs needed for a trend of their lowest levels: 8 rising ones reach the significance that is asked for.
LEAST_EPOCHS = 8
#: A rise by this much more is looked at anew at once.
GROWN_RATIO = 1.25
#: Points of a late growth that are few: then the newest ones count one by one.
LATE_POINTS = 32
#: What has risen before and was given back must be exceeded by half before a new rise is another matter.
GIVEN_BACK_BEFORE = 1.5
#: A fall at an epoch's end of at least this share of what the epoch has grown gives it back.
GIVEN_BACK = 0.5


@dataclass(frozen=True, slots=True)
class Growth:
    """A significant, lasting rise of the level at rest. `x` of the trend is the optimizer step."""

    trend: Trend
    span_steps: float
    span_s: float
    grown_bytes: float
    by: str  # steps, epochs

    @property
    def bytes_per_step(self) -> float:
        return self.trend.slope


def growth_of(track: MemoryTrack, timeline: Timeline) -> Growth | None:
    """The growth of a device's level at rest in this session, or None where nothing grows for sure. Cheap where it is flat."""
    hint = track.growth_hint()
    if track.session is not timeline.run.session or hint < LEAST_GROWTH_BYTES:
        return None
    epochs, mark = track.cache.get("growth_hint", (0, 0.0))
    if epochs != len(track.epochs) or hint > GROWN_RATIO * mark:
        # An epoch's end gives back or does not, and what began late is news long before there are 12 % more points.
        track.cache["growth_hint"] = (len(track.epochs), hint)
        track.cache.pop("growth", None)
    growth: Growth | None = track.cached("growth", track.rest.total, lambda: _growth(track))
    return growth


def _growth(track: MemoryTrack) -> Growth | None:
    if gives_back(list(track.epochs)):
        return _over_epochs(track)
    return _over_steps(track.rest)


def used_growth(track: MemoryTrack) -> Growth | None:
    """The growth of the device's use, for runs whose allocator nobody reads."""
    points = track.used.points
    if len(points) < 24 or points[-1].value - points[0].value < LEAST_GROWTH_BYTES:
        return None
    growth: Growth | None = track.cached("used", track.used.total, lambda: _over_steps(track.used))
    return growth


def gives_back(epochs: list[EpochLevel]) -> bool:
    """Whether what grows within an epoch falls back at its end."""
    if len(epochs) < 2:
        return False
    rises = [e.last - e.first for e in epochs[:-1] if e.points >= 3]
    falls = [a.last - b.first for a, b in pairwise(epochs) if a.points >= 3]
    if not rises:
        return False
    rise, fall = sorted(rises)[len(rises) // 2], sorted(falls)[len(falls) // 2]
    return rise >= LEAST_GROWTH_BYTES and fall >= GIVEN_BACK * rise


def _over_steps(series: Series) -> Growth | None:
    """The whole session's line; or that of its end, where memory was flat first and what came then is another line for sure."""
    points = [p for p in series.points if p.step is not None]
    if len(points) < LEAST_POINTS:
        return None
    whole = _line(points)
    late = _late(points, [p for p in series.tail if p.step is not None])
    if late is None:
        return whole[1]
    line, growth = _line(late)
    other = whole[0] is None or not whole[0].rising or (line is not None and line.low > whole[0].high)
    return growth if growth is not None and other else whole[1]


def _line(points: list[Point]) -> tuple[Trend | None, Growth | None]:
    xs, ys = [float(p.step or 0) for p in points], [p.value for p in points]
    line = trend(xs, ys)
    return line, _checked(line, xs, ys, points[-1].t_s - points[0].t_s, "steps")


def _late(points: list[Point], tail: list[Point]) -> list[Point] | None:
    """The points since the level was last where it began, or None where it left at once or has been as high before.

    A leak that begins late (after an evaluation, with the first long batches) is a flat line and then a steep one: drawn
    through both, the line meets the limit far too late.
    """
    values = [p.value for p in points]
    begun = sorted(values[:LEAST_POINTS])[LEAST_POINTS // 2]
    steps = sorted(abs(b - a) for a, b in pairwise(values))
    near = begun + max(0.5 * LEAST_GROWTH_BYTES, 2.0 * steps[len(steps) // 2])
    onset = max(place for place, value in enumerate(values) if value <= near)
    if onset < LEAST_POINTS:
        return None
    late = points[onset:]
    if len(late) < LATE_POINTS and tail:  # the newest points undiluted
        late = [p for p in late if p.t_s < tail[0].t_s] + [p for p in tail if p.t_s >= late[0].t_s]
        low = max((place for place, p in enumerate(late) if p.value <= near), default=0)
        late = late[low:]
    before = max(values[: onset + 1]) - begun
    if len(late) < LEAST_POINTS or late[-1].value - begun < GIVEN_BACK_BEFORE * before:
        return None
    return late


def _over_epochs(track: MemoryTrack) -> Growth | None:
    epochs = [e for e in track.epochs if e.points >= 3]
    if len(epochs) < LEAST_EPOCHS:
        return None
    xs, ys = [float(e.first_step) for e in epochs], [e.low for e in epochs]
    span_s = track.rest.points[-1].t_s - track.rest.points[0].t_s
    return _checked(trend(xs, ys), xs, ys, span_s, "epochs")


def _checked(line: Trend | None, xs: list[float], ys: list[float], span_s: float, by: str) -> Growth | None:
    if line is None or not line.rising:
        return None
    grown = line.slope * (xs[-1] - xs[0])
    if grown < max(LEAST_GROWTH_BYTES, LEAST_GROWTH_NOISES * line.noise) or not still_rising(xs, ys):
        return None
    return Growth(line, xs[-1] - xs[0], span_s, grown, by)
