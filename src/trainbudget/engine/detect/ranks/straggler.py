"""One rank holds all the others up."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.detect.ranks.words import RankView, last_clock_ratio, last_spread_s, rank_views, steps_come
from trainbudget.engine.tracks.series import median
from trainbudget.findings import CodeRecord, Route, Severity, Threshold
from trainbudget.quantities import duration, percent

#: Share of a rank's words that must be late: of eight all, of more nearly all. Ranks with batches of random length are
#: late in a third of them, so eight in a row come about once in ten thousand looks.
CONSISTENT = 0.85
#: One look in thirty thousand is so far off by chance; a run of an hour takes a few hundred.
Z_LATE = 4.0
#: Ranks named at most; more than that are not the exception but the rule (rank_imbalance).
MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class _Late:
    view: RankView
    excess_s: float | None  # later than the others, median
    wait_excess_s: float
    clock_ratio: float | None
    cause: str


class Straggler(BaseDetector):
    """A rank is later than the others in nearly every step."""

    record = CodeRecord(
        code="straggler",
        family="ranks",
        severity=Severity.WARNING,
        title="One rank holds the others up",
        condition="In nearly all of its words of the last minutes (at least 8) a rank's wait for data and time before the first "
        "collective exceed the other ranks' median by 10 % of the step; or its clock under load is 15 % lower, where that "
        "time is not told.",
        silent="Where only times are told that a collective makes equal (step, backward); on ranks other than 0; while "
        "nothing moves.",
        evidence={
            "excess_s": "seconds later than the others in each step",
            "excess_ratio": "share of the step",
            "wait_s": "its wait for data",
            "others_wait_s": "median of the others",
            "before_s": "its time before the first collective",
            "others_before_s": "median of the others",
            "clock_hz": "its SM clock under load",
            "others_clock_hz": "median of the others",
            "power_w": "its power under load",
        },
        thresholds=(
            Threshold(name="ratio", default=0.10, unit="ratio", reason="a tenth of every other rank's time (lever L26)"),
            Threshold(
                name="clock_ratio", default=0.85, unit="ratio", reason="equal cards under equal load differ by 2-5 % in clock"
            ),
        ),
        causes=("input", "clock", "unknown"),
        levers=("L26", "L27"),
        route=Route.TICKET,
        runbook="input: look at that node's disk, CPU load and loader workers. clock: look for thermal_throttle "
        "and power_cap of that card. unknown: compare its share of the data and other processes on its node.",
    )
    every_s = 30.0  # it compares minutes of words
    clear_s = 60.0

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        if timeline.rank != 0 or not timeline.ranks or not steps_come(timeline):
            return
        step_s = timeline.steps.median_s()
        if not step_s:
            return
        apart = last_spread_s(timeline) >= 0.5 * view.limit(self.record, "ratio") * step_s
        if not apart and last_clock_ratio(timeline) > view.limit(self.record, "clock_ratio"):
            return
        views = rank_views(timeline)
        if len(views) < 2:
            return
        late = [found for v in views if (found := self._judge(view, v, views, step_s)) is not None]
        late.sort(key=lambda f: -(f.excess_s or 0.0))
        for found in late[:MOST_NAMED] if len(late) <= max(1, len(views) // 2) else ():
            yield self._signal(found, views, step_s)

    def _judge(self, view: View, rank: RankView, views: list[RankView], step_s: float) -> _Late | None:
        others = [v for v in views if v is not rank]
        limit_s = view.limit(self.record, "ratio") * step_s
        comparable = [v for v in others if bool(v.befores_s) == bool(rank.befores_s)]
        usual = _median([v.lateness_s for v in comparable])
        excess = _excess(rank.lateness_s, usual)
        late = (
            excess is not None
            and usual is not None
            and excess >= limit_s
            and _beyond_their_spread(rank, comparable)
            and _consistent(rank.latenesses_s, usual + 0.5 * limit_s)
        )
        if not late and rank.befores_s:
            return None
        clock_ratio = _ratio(rank.clock_hz, _median([v.clock_hz for v in others]))
        wait_excess = _excess(rank.wait_s, _median([v.wait_s for v in others]))
        if late and excess is not None:
            if wait_excess is not None and wait_excess >= 0.5 * excess:
                cause = "input"
            else:
                cause = "clock" if clock_ratio is not None and clock_ratio <= 0.95 else "unknown"
            return _Late(rank, excess, wait_excess or 0.0, clock_ratio, cause)
        if clock_ratio is not None and clock_ratio <= view.limit(self.record, "clock_ratio"):
            return _Late(rank, None, wait_excess or 0.0, clock_ratio, "clock")
        return None

    def _signal(self, found: _Late, views: list[RankView], step_s: float) -> Signal:
        rank = found.view
        others = [v for v in views if v is not rank]
        why = {"input": "it waits for data", "clock": "its clock is low", "unknown": "why is unknown"}
        excess = found.excess_s
        held = "" if excess is None else f" by {duration(excess)} in each step ({percent(excess / step_s)})"
        return Signal(
            "straggler",
            rank=rank.rank,
            cause=found.cause,
            summary=f"rank {rank.rank} holds the others up{held}: {why[found.cause]}"
            + (f" ({percent(found.clock_ratio)} of theirs)" if found.cause == "clock" and found.clock_ratio is not None else ""),
            evidence={
                "excess_s": _rounded(found.excess_s),
                "excess_ratio": None if found.excess_s is None else round(found.excess_s / step_s, 3),
                "wait_s": _rounded(rank.wait_s),
                "others_wait_s": _rounded(_median([v.wait_s for v in others])),
                "before_s": _rounded(rank.before_s),
                "others_before_s": _rounded(_median([v.before_s for v in others])),
                "clock_hz": rank.clock_hz,
                "others_clock_hz": _median([v.clock_hz for v in others]),
                "power_w": rank.power_w,
            },
        )


def _beyond_their_spread(rank: RankView, others: list[RankView]) -> bool:
    """Whether the rank's latenesses are larger than the others' beyond chance (Mann and Whitney 1947, `Z_LATE`).

    Where batches are of random length every rank is late now and then, and medians of some ten draws wander by more than a
    tenth of the step.
    """
    single = sorted(v for view in others for v in view.latenesses_s)
    n, m = len(rank.latenesses_s), len(single)
    if not n or not m:
        return False
    larger = sum(0.5 * (bisect_left(single, v) + bisect_right(single, v)) for v in rank.latenesses_s)
    return larger - 0.5 * n * m >= Z_LATE * math.sqrt(n * m * (n + m + 1) / 12.0)


def _consistent(values: tuple[float, ...], limit: float) -> bool:
    late = sum(1 for v in values if v > limit)
    return late >= (len(values) if len(values) < 12 else CONSISTENT * len(values))


def _median(values: list[float | None]) -> float | None:
    return median([v for v in values if v is not None])


def _excess(value: float | None, usual: float | None) -> float | None:
    return None if value is None or usual is None else value - usual


def _ratio(value: float | None, usual: float | None) -> float | None:
    return None if value is None or not usual else value / usual


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
