"""Trends with significance, and projections of the whole run. A forecast may refuse: then it is None."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from trainbudget.engine.timeline import Timeline
from trainbudget.engine.tracks.series import Point

#: Two-sided 90 % quantile of the normal distribution.
Z90 = 1.645
#: A trend must be this significant (Mann-Kendall z; 3.3 = one false alarm in a thousand independent looks, one-sided).
Z_TREND = 3.3


@dataclass(frozen=True, slots=True)
class Trend:
    """A robust line `value = level + slope * (x - x_last)`.

    Attributes:
        slope: units of value per unit of x, the median of pairwise slopes (Theil 1950, Sen 1968).
        low, high: its 90 % interval (Sen 1968).
        level: the line's value at `x_last`.
        noise: median absolute residual x 1.4826.
        z: Mann-Kendall statistic; |z| >= `Z_TREND` is a trend.
    """

    slope: float
    low: float
    high: float
    level: float
    x_last: float
    noise: float
    z: float
    points: int

    @property
    def rising(self) -> bool:
        return self.z >= Z_TREND and self.low > 0.0

    @property
    def falling(self) -> bool:
        return self.z <= -Z_TREND and self.high < 0.0

    def reaches(self, limit: float, *, error: float = 0.0) -> tuple[float, float, float] | None:
        """x at which the line meets `limit` (value, low, high), or None where it never does.

        `error` is how far the limit itself may be off (90 %), in units of y: it widens the interval.
        """
        gap = limit - self.level
        slope, low, high = (self.slope, self.low, self.high) if gap >= 0 else (-self.slope, -self.high, -self.low)
        gap = abs(gap)
        if slope <= 0.0:
            return None
        margin = math.hypot(Z90 * self.noise, error)
        at = self.x_last + gap / slope
        earliest = self.x_last + max(0.0, gap - margin) / max(high, slope)
        latest = self.x_last + (gap + margin) / low if low > 0.0 else math.inf
        return at, earliest, latest


def trend(xs: Sequence[float], ys: Sequence[float], *, most: int = 48) -> Trend | None:
    """The robust trend of points, or None of fewer than 6 or without any spread in x. At most `most` points are used."""
    n = len(xs)
    if n < 6 or xs[-1] <= xs[0]:
        return None
    if n > most:
        places = [round(i * (n - 1) / (most - 1)) for i in range(most)]
        xs, ys = [xs[i] for i in places], [ys[i] for i in places]
        n = most
    slopes: list[float] = []
    for i in range(n - 1):
        x_i, y_i = xs[i], ys[i]
        slopes += [(y - y_i) / (x - x_i) for x, y in zip(xs[i + 1 :], ys[i + 1 :], strict=True) if x > x_i]
    if not slopes:
        return None
    slopes.sort()
    count = len(slopes)
    # Kendall's S: x rises, so a pair agrees where its slope is positive.
    s = count - bisect_right(slopes, 0.0) - bisect_left(slopes, 0.0)
    variance = n * (n - 1) * (2 * n + 5) / 18.0
    sigma = math.sqrt(variance)
    z = (s - (1 if s > 0 else -1 if s < 0 else 0)) / sigma
    reach = Z90 * sigma
    slope = slopes[count // 2]
    low = slopes[max(0, int((count - reach) / 2))]
    high = slopes[min(count - 1, int((count + reach) / 2) + 1)]
    x_last = xs[-1]
    levels = sorted(y - slope * (x - x_last) for x, y in zip(xs, ys, strict=True))
    level = levels[n // 2]
    noise = 1.4826 * sorted(abs(v - level) for v in levels)[n // 2]
    return Trend(slope, low, high, level, x_last, noise, z, n)


def trend_of(points: Sequence[Point], *, by_step: bool = False, most: int = 48) -> Trend | None:
    """The trend of a series over time, or over steps."""
    if by_step:
        points = [p for p in points if p.step is not None]
        return trend([float(p.step or 0) for p in points], [p.value for p in points], most=most)
    return trend([p.t_s for p in points], [p.value for p in points], most=most)


def still_rising(xs: Sequence[float], ys: Sequence[float], *, share: float = 0.4) -> bool:
    """Whether the last third rises at `share` of the first third's pace at least: a cache that fills does not.

    Thirds are compared by their medians; a filling cache (exponential) falls below 0.4 after three of its time constants, below
    0.75 after one.
    """
    third = len(xs) // 3
    if third < 2:
        return True
    x = [sum(xs[i : i + third]) / third for i in (0, third, len(xs) - third)]
    y = [sorted(ys[i : i + third])[third // 2] for i in (0, third, len(xs) - third)]
    if not x[0] < x[1] < x[2]:
        return True
    early, late = (y[1] - y[0]) / (x[1] - x[0]), (y[2] - y[1]) / (x[2] - x[1])
    return late > 0.0 and late >= share * early


#: A line is not drawn further than this many times the span it was seen over: beyond, the answer is "unknown".
REACH = 5.0


@dataclass(frozen=True, slots=True)
class Line:
    """A robust line through pairs that are not ordered in time (peaks against tokens): value at `x` with 90 % interval."""

    slope: float
    low: float
    high: float
    middle_x: float
    middle_y: float
    noise: float
    tau: float  # Kendall's rank correlation, -1 to 1
    points: int

    def at(self, x: float) -> tuple[float, float, float]:
        """Value, low, high at `x`: the interval holds the slope's and the scatter's."""
        reach = x - self.middle_x
        slopes = (self.low, self.high) if reach >= 0 else (self.high, self.low)
        margin = Z90 * self.noise
        return (
            self.middle_y + self.slope * reach,
            self.middle_y + slopes[0] * reach - margin,
            self.middle_y + slopes[1] * reach + margin,
        )


def line_through(pairs: Sequence[tuple[float, float]], *, least: int = 8, most: int = 64) -> Line | None:
    """The Theil-Sen line through (x, y) pairs, or None of fewer than `least` or without spread in x."""
    ordered = sorted(pairs)
    if len(ordered) > most:
        ordered = [ordered[round(i * (len(ordered) - 1) / (most - 1))] for i in range(most)]
    n = len(ordered)
    if n < max(3, least) or ordered[-1][0] <= ordered[0][0]:
        return None
    slopes, s, untied = [], 0, 0
    for i in range(n):
        x_i, y_i = ordered[i]
        for j in range(i + 1, n):
            dx, dy = ordered[j][0] - x_i, ordered[j][1] - y_i
            if dx > 0.0:
                slopes.append(dy / dx)
                s += (dy > 0) - (dy < 0)
                untied += 1
    slopes.sort()
    count = len(slopes)
    reach = Z90 * math.sqrt(n * (n - 1) * (2 * n + 5) / 18.0)
    slope = slopes[count // 2]
    middle_x = ordered[n // 2][0]
    levels = sorted(y - slope * (x - middle_x) for x, y in ordered)
    middle_y = levels[n // 2]
    noise = 1.4826 * sorted(abs(v - middle_y) for v in levels)[n // 2]
    return Line(
        slope,
        slopes[max(0, int((count - reach) / 2))],
        slopes[min(count - 1, int((count + reach) / 2) + 1)],
        middle_x,
        middle_y,
        noise,
        s / untied,
        n,
    )


def pace_s(timeline: Timeline) -> float | None:
    """Wall seconds a step now, phases between them at their share so far, or None of fewer than two step lines."""
    records = timeline.steps.window(steady=False)
    if len(records) < 2:
        return None
    span_s = records[-1].end_s - records[0].end_s - sum(r.phase_s for r in records[1:])
    pace = _pace(span_s, sum(r.count for r in records[1:]))
    return None if pace is None else pace * (1.0 + _phases_ratio(timeline))


@dataclass(frozen=True, slots=True)
class Projection:
    """Where the run will end. Seconds are from process start to the last step, money is for the whole job."""

    run_time_s: float
    run_time_low_s: float
    run_time_high_s: float
    end_at_s: float
    pace_s: float  # wall seconds a step, phases included
    cost: float | None
    cost_low: float | None
    cost_high: float | None


def project(timeline: Timeline, cost_so_far: float | None) -> Projection | None:
    """The run's end from its pace, or None: no steps yet, no known total, still warming up.

    The pace of a step is the slower of today's (the window) and the whole run's, both without evaluations and saves;
    those come on top at their share of the whole run so far. (Within a window they come and go: a projection with them
    in it would jump at each evaluation.)
    """
    left = timeline.steps_left
    track = timeline.steps
    session = timeline.run.session
    if left is None or session is None or track.steady_since_step is None:
        return None
    records = track.window()
    if not track.enough(records):
        return None
    newest_s = records[-1].end_s
    recent = _pace(newest_s - records[0].end_s - sum(r.phase_s for r in records[1:]), sum(r.count for r in records[1:]))
    if recent is None:
        return None
    first_s, steps = session.first_step_end_s, track.session_steps - 1
    phases_s = sum(share.total_s for share in timeline.shares.kinds.values())
    whole = None if first_s is None else _pace(newest_s - timeline.wall_s(first_s) - phases_s, steps)
    low, high = min(recent, whole or recent), max(recent, whole or recent)
    phases = high * _phases_ratio(timeline)
    pace = high + phases
    elapsed = timeline.wall_s() - timeline.started_s
    spread = 1.0 + 0.5 / math.sqrt(len(records))
    run_s = elapsed + left * pace
    rate = _cost_rate_per_s(timeline)
    to_cost = (lambda s: None) if rate is None or cost_so_far is None else (lambda s: cost_so_far + (s - elapsed) * rate)
    run_low, run_high = elapsed + left * (low / spread + phases), elapsed + left * (high * spread + phases)
    return Projection(
        run_s, run_low, run_high, timeline.now_s + left * pace, pace, to_cost(run_s), to_cost(run_low), to_cost(run_high)
    )


def _phases_ratio(timeline: Timeline) -> float:
    """Seconds of evaluation, saving and logging for each second of steps, over whole cycles of each."""
    ratio = 0.0
    for share in timeline.shares.kinds.values():
        inside = share.seconds()
        outside = share.span_s(timeline.wall_s()) - inside
        ratio += inside / outside if outside > 0.0 else 0.0
    return ratio


def _pace(span_s: float, steps: int) -> float | None:
    """Seconds a step, or None where there is nothing to divide."""
    return span_s / steps if steps > 0 and span_s > 0.0 else None


def _cost_rate_per_s(timeline: Timeline) -> float | None:
    """Money a second for the whole job."""
    if timeline.price is None or timeline.price.per_gpu_hour is None:
        return None
    return timeline.price.per_gpu_hour / 3600.0 * job_gpus(timeline)


def job_gpus(timeline: Timeline) -> int:
    """Charged GPUs of the whole job: own ones times ranks, where each rank has the same."""
    return max(1, len(timeline.charged)) * timeline.world_size
