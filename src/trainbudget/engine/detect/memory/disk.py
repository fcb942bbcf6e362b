"""The disk runs out: checkpoints, or something else, fill it before the run ends."""

from __future__ import annotations

import math
from collections.abc import Iterable

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.detect.memory.host import LEAST_GROWTH_BYTES, LEAST_POINTS, STEADY
from trainbudget.engine.detect.memory.standing import gib
from trainbudget.engine.forecast import REACH, still_rising, trend
from trainbudget.engine.timeline import Timeline
from trainbudget.engine.tracks.series import Series
from trainbudget.findings import CodeRecord, Forecast, Route, Severity, Threshold

#: Saves after which a run of unknown settings is taken to keep them all: the usual limits are 1 to 3.
SAVES_UNKNOWN_LIMIT = 4


def kept_checkpoints(timeline: Timeline) -> int | None:
    """How many checkpoints are kept, as the framework's settings say; None = all, or unknown."""
    settings = timeline.header.settings or {}
    for name in ("save_total_limit", "save_top_k"):
        value = settings.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


class DiskForecast(BaseDetector):
    """Checkpoints fill the disk before the run ends."""

    record = CodeRecord(
        code="disk_forecast",
        family="spend",
        severity=Severity.WARNING,
        title="The disk will be full",
        condition="Each save takes about the same from the free space, and the saves that are still to come take more than there "
        "is; or free space falls with a significant trend that meets zero within the run. Critical when the next save fails.",
        silent="Where old checkpoints are deleted (free space comes back); before two saves (four, where it is not "
        "known how many are kept); when the run ends before.",
        evidence={
            "free_bytes": "free on the checkpoint's file system",
            "per_save_bytes": "taken by one save",
            "saves_left": "saves still to come, where steps are known",
            "saves_that_fit": "saves that still fit",
            "bytes_per_hour": "fall of the free space",
        },
        thresholds=(
            Threshold(name="reach", default=REACH, unit="ratio", reason="a line is not drawn further than five times its span"),
            Threshold(name="least_s", default=300.0, unit="s", reason="temporary files come and go within minutes"),
        ),
        levers=("L31",),
        route=Route.TICKET,
        runbook="save_total_limit deletes old checkpoints; save_only_model leaves the optimizer's state out (no resume). A save "
        "that fails half-way may leave a checkpoint that cannot be loaded.",
    )
    every_s = 30.0
    clear_s = 120.0

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        series = timeline.host.disk_free
        if series.total < 4 or not timeline.run.training or series.last is None:
            return
        free = series.last.value
        yield from self._by_saves(timeline, free) or self._by_trend(view, series, free)

    def _by_saves(self, timeline: Timeline, free: float) -> list[Signal]:
        saves = [p for p in timeline.run.closed if p.phase == "save"]
        if len(saves) < 2:
            return []
        points = timeline.host.disk_free.points
        taken, steps = [], []
        for place, save in enumerate(saves[-6:]):
            before = next((p.value for p in reversed(points) if p.t_s <= save.start_s), None)
            after = next((p.value for p in points if p.t_s >= save.end_s), None)
            if before is not None and after is not None:
                taken.append(before - after)
            previous = saves[-6:][place - 1] if place else None
            if previous is not None and save.step is not None and previous.step is not None:
                steps.append((save.step - previous.step, save.end_s - previous.end_s))
        if len(taken) < 2 or not steps or min(taken[-2:]) <= 0.0:
            return []
        limit = kept_checkpoints(timeline)
        if limit is not None and len(saves) > limit:
            return []  # old ones are deleted: what there is will do
        per_save = sorted(taken)[len(taken) // 2]
        if per_save < 1e6 or min(taken[-2:]) < 0.5 * per_save:
            return []  # nothing is taken, or old ones are deleted
        every, every_s = sorted(steps)[len(steps) // 2]
        fit = int(free // per_save)
        left = timeline.steps_left
        saves_left = int(left // every) if left is not None and every > 0 else None
        if saves_left is not None and limit is not None:
            saves_left = min(saves_left, limit + 1 - len(saves))  # the new one is written before the oldest is deleted
        if (saves_left is not None and fit >= saves_left) or (saves_left is None and fit > REACH * len(saves)):
            return []
        if fit >= 1 and limit is None and len(saves) < SAVES_UNKNOWN_LIMIT:
            return []  # deletion may begin with the next one
        at_step = (saves[-1].step or 0) + (fit + 1) * every
        return [
            Signal(
                "disk_forecast",
                severity=Severity.CRITICAL if fit < 1 else Severity.WARNING,
                summary=f"{fit} more saves of {gib(per_save)} fit on the disk"
                + (f", {saves_left} are to come" if saves_left is not None else ""),
                evidence={
                    "free_bytes": free,
                    "per_save_bytes": round(per_save),
                    "saves_left": saves_left,
                    "saves_that_fit": fit,
                },
                forecast=Forecast(at_step=float(at_step), at_s=round(saves[-1].end_s + (fit + 1) * every_s, 1)),
            )
        ]

    def _by_trend(self, view: View, series: Series, free: float) -> list[Signal]:
        timeline = view.timeline
        points = series.points
        span = points[-1].t_s - points[0].t_s
        if timeline.run.phase_counts.get("save"):
            return []  # stairs of checkpoints are judged by their steps
        if len(points) < LEAST_POINTS or span < view.limit(self.record, "least_s"):
            return []
        if points[0].value - points[-1].value < LEAST_GROWTH_BYTES:
            return []
        xs, ys = [p.t_s for p in points], [-p.value for p in points]
        line = trend(xs, ys)
        if line is None or not line.rising or not still_rising(xs, ys, share=STEADY) or line.slope * span < 4.0 * line.noise:
            return []
        met = line.reaches(0.0)
        if met is None or met[0] - timeline.now_s > view.limit(self.record, "reach") * span:
            return []
        left, pace = timeline.steps_left, timeline.steps.median_s()
        if left is not None and pace is not None and met[0] - timeline.now_s > 1.5 * left * pace:
            return []
        return [
            Signal(
                "disk_forecast",
                summary=f"the disk is full in about {(met[0] - timeline.now_s) / 60.0:.0f} min",
                evidence={"free_bytes": free, "bytes_per_hour": round(line.slope * 3600.0)},
                forecast=Forecast(
                    at_s=round(met[0], 1), low=round(met[1], 1), high=round(met[2], 1) if math.isfinite(met[2]) else None
                ),
            )
        ]
