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
    from trainbudget.engine.tracks.series import Series

MIB = float(2**20)
#: Growth below this is allocator granularity (2 MiB blocks, 20 MiB segments), not a trend worth a word.
LEAST_GROWTH_BYTES = 48 * MIB
#: Growth must stand out of the level's own noise.
LEAST_GROWTH_NOISES = 4.0
#: Points needed for a trend: 8 rising ones reach the significance that is asked for.
LEAST_POINTS = 8
#: Epochs needed for a trend of their lowest levels: 8 rising ones reach the significance that is asked for.
LEAST_EPOCHS = 8
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
    if track.session is not timeline.run.session or track.growth_hint() < LEAST_GROWTH_BYTES:
        return None
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
    points = [p for p in series.points if p.step is not None]
    if len(points) < LEAST_POINTS:
        return None
    xs, ys = [float(p.step or 0) for p in points], [p.value for p in points]
    return _checked(trend(xs, ys), xs, ys, points[-1].t_s - points[0].t_s, "steps")


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
