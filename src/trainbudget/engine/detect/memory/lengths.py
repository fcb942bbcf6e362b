"""Peak memory as a function of the batch's length: what the longest batch to come will need."""

from __future__ import annotations

from dataclasses import dataclass

from trainbudget.engine.forecast import Line, line_through
from trainbudget.engine.timeline import Timeline
from trainbudget.engine.tracks.device import DeviceTrack
from trainbudget.events import LongBatch

#: Pairs needed before lengths explain anything.
LEAST_PAIRS = 12
#: ... where only record peaks are dated: a record comes about ln(n) times in n steps, and lies on the upper edge.
LEAST_RECORDS = 5
#: Fewer count where they agree with one another and with the level at rest to these shares of the peak: where the longest
#: lengths are common, they come in the first minutes and no record after them.
FEW_RECORDS = 3
STRAIGHT_RATIO = 0.02
BEGINS_RATIO = 0.15
#: Rank correlation of peak and length from which the length is what drives the peak (0.6: four of five pairs agree).
EXPLAINED_TAU = 0.6
#: The longer half's slope must exceed the whole's by this to be taken instead: attention without a fused kernel is quadratic.
CONVEX = 1.15


@dataclass(frozen=True, slots=True)
class LengthForecast:
    """The peak (bytes, 90 % interval) of the longest batch that is known to come; `at_step` where the plan knows it."""

    tokens: float
    value: float
    low: float
    high: float
    at_step: float | None
    source: str  # plan, observed


def length_forecast(device: DeviceTrack, timeline: Timeline) -> LengthForecast | None:
    """What the longest batch to come needs, or None where no longer one is known or lengths explain nothing."""
    plan = timeline.plan
    track = device.memory.tokens
    if plan is not None and plan.longest:
        longest = _longest_to_come(plan.longest, timeline.run.last_step or 0, track.longest_batch)
        if longest is None or longest.tokens <= track.longest_batch:
            return None  # one as long has been and fitted
        at_step = None if longest.step is None else float(longest.step)
        if plan.peak_by_tokens:
            value, low, high = interpolated(plan.peak_by_tokens, longest.tokens)
            return LengthForecast(longest.tokens, value, low, high, at_step, "plan")
        line = observed_line(device, by="batch")
        return None if line is None else _from_line(line, longest.tokens, at_step)
    tokens = timeline.budget_value("max_sequence_tokens")
    if tokens is None or tokens <= track.longest_sequence:
        return None
    line = observed_line(device, by="sequence")
    return None if line is None else _from_line(line, tokens, None)


def _longest_to_come(longest: list[LongBatch], done: int, seen_tokens: float) -> LongBatch | None:
    """The largest that has not come yet; one whose step nobody knows has come once a batch as long was seen."""
    coming = [b for b in longest if (b.step > done if b.step is not None else b.tokens > seen_tokens)]
    # Of equals the first: that is when it happens.
    return max(coming, key=lambda b: (b.tokens, -(b.step or 0)), default=None)


def observed_line(device: DeviceTrack, *, by: str) -> Line | None:
    """The line of peak against length, where length explains the peak; cached in the track."""
    track = device.memory
    pairs = track.tokens.by_sequence if by == "sequence" else track.tokens.by_batch
    least = LEAST_RECORDS if track.tokens.records_only else LEAST_PAIRS
    if len(pairs) < least:
        if not track.tokens.records_only or len(pairs) < FEW_RECORDS:
            return None
        return _few(pairs, track.level_bytes)
    line: Line | None = track.cached(f"length/{by}", track.tokens.total, lambda: _line(pairs, least))
    return line


def _few(records: list[tuple[float, float]], at_rest: float | None) -> Line | None:
    """Of three or four records: a line where they lie on one that begins at what is held without any batch."""
    line = line_through(records, least=FEW_RECORDS)
    if line is None or at_rest is None or line.tau < 1.0:
        return None
    if any(abs(peak - line.at(tokens)[0]) > STRAIGHT_RATIO * peak for tokens, peak in records):
        return None
    return line if abs(line.at(0.0)[0] - at_rest) <= BEGINS_RATIO * line.middle_y else None


def _line(pairs: list[tuple[float, float]], least: int) -> Line | None:
    line = line_through(pairs, least=least)
    if line is None or line.tau < EXPLAINED_TAU or line.low <= 0.0:
        return None
    longer = line_through(sorted(pairs)[len(pairs) // 2 :])
    return longer if longer is not None and longer.slope > CONVEX * line.slope and longer.tau >= EXPLAINED_TAU else line


def _from_line(line: Line, tokens: float, step: float | None) -> LengthForecast:
    value, low, high = line.at(tokens)
    return LengthForecast(tokens, value, low, high, step, "observed")


def interpolated(table: list[list[float]], tokens: float) -> tuple[float, float, float]:
    """(value, low, high) at `tokens` from [[tokens, bytes, low?, high?]]; beyond the ends the last slope goes on."""
    rows = sorted(table)
    columns = []
    for place in (1, 2, 3):
        points = [(r[0], r[place] if len(r) > place else r[1]) for r in rows]
        columns.append(_at(points, tokens))
    return columns[0], columns[1], columns[2]


def _at(points: list[tuple[float, float]], x: float) -> float:
    if len(points) == 1:
        return points[0][1]
    place = next((i for i in range(1, len(points)) if points[i][0] >= x), len(points) - 1)
    (x0, y0), (x1, y1) = points[place - 1], points[place]
    return y0 if x1 <= x0 else y0 + (y1 - y0) * (x - x0) / (x1 - x0)
