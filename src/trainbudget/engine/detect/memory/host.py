"""The host's memory runs out: the kernel kills a loader's worker."""

from __future__ import annotations

import math
from collections.abc import Iterable

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.detect.memory.standing import GIB, gib
from trainbudget.engine.forecast import REACH, Trend, still_rising, trend
from trainbudget.engine.oom_message import is_host_oom
from trainbudget.engine.timeline import Timeline
from trainbudget.engine.tracks.series import Point, Series
from trainbudget.findings import CodeRecord, Forecast, Route, Severity, Threshold
from trainbudget.quantities import duration

#: Growth below this is page cache, arenas and prefetched batches.
LEAST_GROWTH_BYTES = 0.25 * GIB
#: The last third must rise at this share of the first's pace: a host's memory often fills (prefetch, arenas, page tables).
STEADY = 0.75
#: Limit minus resident and available memory describe the same memory when they differ by less than this share of the limit.
SAME_MEMORY_RATIO = 0.25
#: Points after which a trend is looked for (host lines come every 10 s).
LEAST_POINTS = 12


def rss_counts(timeline: Timeline, limit: float) -> bool:
    """Whether resident memory says more than the available memory does.

    Pages that workers share with their parent are counted in each of them, so where both describe the same memory the available
    one is right; resident memory counts where nothing else is known, or where the limit is a container's and the available
    memory the whole machine's.
    """
    rss, available = timeline.host.total_rss.last, timeline.host.available.last
    if rss is None or available is None:
        return True
    if rss.value >= limit:
        return False  # more than there is, and yet it runs: shared pages
    return available.value > limit - rss.value + SAME_MEMORY_RATIO * limit


def _has_grown(points: list[Point], first: int, *, rising: bool) -> bool:
    """The cheap question before any line is drawn: enough points from `first` on, and a change worth a word."""
    if len(points) - first < LEAST_POINTS:
        return False
    moved = points[-1].value - points[first].value
    return (moved if rising else -moved) >= LEAST_GROWTH_BYTES


class HostMemoryForecast(BaseDetector):
    """The host's memory runs out before the run ends."""

    record = CodeRecord(
        code="host_memory_forecast",
        family="memory",
        severity=Severity.WARNING,
        title="The host will run out of memory",
        condition="Resident memory of the process and its children grows, or available memory falls, with a significant trend "
        "that meets the limit (cgroup or machine) within the run; or a worker was killed for it.",
        silent="In start-up; without a trend; beyond five times the span over which it was seen (twice in its first ten minutes);"
        " when the run ends before.",
        evidence={
            "rss_bytes": "resident, own process",
            "children_rss_bytes": "resident, loader workers and other children",
            "available_bytes": "available on the host or in the cgroup",
            "limit_bytes": "cgroup limit or the machine's memory",
            "bytes_per_hour": "growth",
            "by": "rss or available",
            "children_ratio": "share of the children in what is resident",
            "message": "the error's words, where a worker was killed",
        },
        thresholds=(
            Threshold(name="reach", default=REACH, unit="ratio", reason="a line is not drawn further than five times its span"),
            Threshold(
                name="early_reach",
                default=2.0,
                unit="ratio",
                reason="what fills (page cache, arenas, copies on write) is a straight line at first: it is not drawn far yet",
            ),
            Threshold(
                name="early_s", default=600.0, unit="s", reason="a first pass over the data has filled most of that by then"
            ),
            Threshold(name="least_s", default=120.0, unit="s", reason="workers fill their prefetch queues in the first minute"),
            Threshold(name="critical_s", default=600.0, unit="s", reason="time to save a checkpoint and stop by hand"),
        ),
        levers=(),
        route=Route.PAGE,
        runbook="See who grew: with children_rss_bytes, take fewer workers, a smaller prefetch_factor and arrays instead of "
        "Python lists in the dataset; with rss_bytes, look for what is kept from step to step. In dmesg the kernel's own word: "
        "Out of memory: Killed process.",
    )
    every_s = 15.0
    clear_s = 120.0

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, Trend | None]] = {}
        self._first: dict[str, int] = {}  # place of the session's first point

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        run = timeline.run
        killed = run.exception
        if killed is not None and is_host_oom(killed.detail.get("type"), killed.detail.get("message")):
            yield Signal(
                "host_memory_forecast",
                severity=Severity.CRITICAL,
                summary="the host's memory ran out: a process of this run was killed or could not allocate",
                evidence={**self._evidence(timeline), "message": str(killed.detail.get("message"))[:300]},
            )
            return
        if not run.training or not run.started or timeline.steps.warming:
            return
        best = min(self._meetings(timeline), key=lambda m: m[1][0], default=None)
        if best is None:
            return
        by, (at, low, high), line, span = best
        ahead = at - timeline.now_s
        reach = view.limit(self.record, "early_reach" if span < view.limit(self.record, "early_s") else "reach")
        if span < view.limit(self.record, "least_s") or ahead > reach * span:
            return
        left, pace = timeline.steps_left, timeline.steps.median_s()
        if left is not None and pace is not None and ahead > 1.5 * left * pace:
            return  # the run is over before, pauses included
        soon = ahead <= view.limit(self.record, "critical_s")
        yield Signal(
            "host_memory_forecast",
            severity=Severity.CRITICAL if soon else Severity.WARNING,
            summary=f"the host's memory is full in {duration(ahead)} ({gib(abs(line.slope) * 3600.0)} an hour)",
            evidence={**self._evidence(timeline), "bytes_per_hour": round(abs(line.slope) * 3600.0), "by": by},
            forecast=Forecast(at_s=round(at, 1), low=round(low, 1), high=round(high, 1) if math.isfinite(high) else None),
        )

    def _meetings(self, timeline: Timeline) -> list[tuple[str, tuple[float, float, float], Trend, float]]:
        host = timeline.header.host
        limit = host.memory_limit_bytes if host is not None else None
        since = timeline.run.session.first_step_end_s if timeline.run.session is not None else None
        out = []
        for by, series, end in (("rss", timeline.host.total_rss, limit), ("available", timeline.host.available, 0.0)):
            if end is None or (by == "rss" and not rss_counts(timeline, end)):
                continue
            first = self._first[by] = series.first_after(since, near=self._first.get(by, 0))
            if not _has_grown(series.points, first, rising=by == "rss"):
                continue
            points = series.points[first:]
            if timeline.gaps:  # nothing grows while the machine sleeps: the line is drawn over wall seconds
                points = [Point(timeline.wall_s(p.t_s), p.step, p.value) for p in points]
            line = self._line(by, series, points)
            if line is None:
                continue
            met = line.reaches(end)
            if met is not None:
                asleep_s = timeline.now_s - timeline.wall_s()
                at, low, high = (value + asleep_s for value in met)
                out.append((by, (at, low, high), line, points[-1].t_s - points[0].t_s))
        return out

    def _line(self, by: str, series: Series, points: list[Point]) -> Trend | None:
        rising = by == "rss"
        known = self._seen.get(by)
        if known is not None and known[0] <= series.total < known[0] * 1.12 + 1:
            return known[1]
        xs, ys = [p.t_s for p in points], [p.value if rising else -p.value for p in points]
        line = trend(xs, ys)
        if line is not None and not (
            line.rising and line.slope * (xs[-1] - xs[0]) > 4.0 * line.noise and still_rising(xs, ys, share=STEADY)
        ):
            line = None
        if line is not None and not rising:
            line = Trend(-line.slope, -line.high, -line.low, -line.level, line.x_last, line.noise, -line.z, line.points)
        self._seen[by] = (series.total, line)
        return line

    @staticmethod
    def _evidence(timeline: Timeline) -> dict[str, object]:
        last, host = timeline.host.last, timeline.header.host
        rss = last.rss_bytes if last is not None else None
        children = last.children_rss_bytes if last is not None else None
        whole = (rss or 0.0) + (children or 0.0)
        return {
            "rss_bytes": rss,
            "children_rss_bytes": children,
            "available_bytes": last.memory_available_bytes if last is not None else None,
            "limit_bytes": host.memory_limit_bytes if host is not None else None,
            "children_ratio": round((children or 0.0) / whole, 3) if whole else None,
        }
