"""Evaluation that keeps its outputs on the GPU."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.detect.memory.growth import LEAST_GROWTH_BYTES
from trainbudget.engine.detect.memory.standing import STANDING_EVIDENCE, gib, standing
from trainbudget.engine.forecast import REACH, Trend, still_rising, trend
from trainbudget.engine.timeline import Timeline
from trainbudget.engine.tracks.memory import MemoryTrack
from trainbudget.engine.tracks.memory_records import PhaseMemory
from trainbudget.findings import CodeRecord, Forecast, Route, Severity, Threshold
from trainbudget.quantities import duration

#: Lines in the phase before a trend is looked for.
LEAST_LINES = 8


@dataclass(frozen=True, slots=True)
class Accumulation:
    """Growth of what an evaluation holds, over its seconds. `factor`: a peak is this many times what has accumulated
    (concatenating needs old and new at once: 2)."""

    trend: Trend
    base_bytes: float
    accumulated_bytes: float
    factor: float
    begin_s: float
    batch_bytes: float  # the largest rise between two lines: what comes in lumps is known to a lump


def accumulation_of(track: MemoryTrack) -> Accumulation | None:
    """The growth inside the open evaluation, or None where what it holds is flat."""
    phase = track.phase
    if phase is None or phase.phase != "eval" or len(phase.lines) < LEAST_LINES:
        return None
    if phase.lines[-1][1] - phase.lines[0][1] < LEAST_GROWTH_BYTES:
        return None
    found: Accumulation | None = track.cached("eval", len(phase.lines), lambda: _accumulation(phase))
    return found


def _accumulation(phase: PhaseMemory) -> Accumulation | None:
    xs = [t for t, _, _ in phase.lines]
    ys = [allocated for _, allocated, _ in phase.lines]
    line = trend(xs, ys)
    if line is None or not line.rising or not still_rising(xs, ys):
        return None
    grown = line.slope * (xs[-1] - xs[0])
    if grown < max(LEAST_GROWTH_BYTES, 4.0 * line.noise):
        return None
    base = phase.start_allocated
    held = ys[-1] - base
    factors = [
        (peak - base) / (allocated - base)
        for _, allocated, peak in phase.lines[len(phase.lines) // 2 :]
        if peak is not None and allocated - base > 0.25 * held > 0
    ]
    return Accumulation(
        line, base, held, max(1.0, *factors) if factors else 1.0, phase.start_s, max(b - a for a, b in pairwise(ys))
    )


def usual_duration_s(timeline: Timeline) -> float | None:
    """How long evaluations have taken so far, or None before the first has ended."""
    ended = [p.end_s - p.start_s for p in timeline.run.closed if p.phase == "eval"]
    return sorted(ended)[len(ended) // 2] if ended else None


class EvalAccumulation(BaseDetector):
    """An evaluation keeps its outputs on the GPU, batch by batch."""

    record = CodeRecord(
        code="eval_accumulation",
        family="memory",
        severity=Severity.WARNING,
        title="Evaluation keeps its outputs on the GPU",
        condition="Inside an evaluation what is allocated grows with a significant trend. Warning where it meets the limit "
        "before the evaluation ends (where its length is known, else within five times what has passed), else information.",
        silent="Where it is flat; before 8 allocator lines of the evaluation; in training.",
        evidence={
            **STANDING_EVIDENCE,
            "bytes_per_s": "growth",
            "bytes_per_item": "growth a batch, where batches are counted",
            "accumulated_bytes": "held so far beyond training's level at rest",
            "peak_factor": "the peak is this many times what has accumulated (concatenation: 2)",
            "items_done": "batches done",
            "items_total": "batches in all",
        },
        thresholds=(
            Threshold(name="reach", default=REACH, unit="ratio", reason="a line is not drawn further than five times its span"),
        ),
        levers=("L30",),
        route=Route.PAGE,
        runbook="eval_accumulation_steps moves outputs to the host every N batches; preprocess_logits_for_metrics reduces them "
        "(argmax) before they are kept; prediction_loss_only keeps none.",
    )
    every_s = 5.0
    clear_s = 10.0

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        opened = next((p for p in timeline.run.open if p.phase == "eval"), None)
        if opened is None:
            return
        for device in timeline.owned:
            found = accumulation_of(device.memory)
            if found is None or found.begin_s != opened.start_s:
                continue
            now = standing(device, timeline)
            passed = timeline.now_s - opened.start_s
            ends_s = self._ends_s(timeline, passed, opened.items_done, opened.items_total)
            hit_s = None
            if now.capacity is not None:
                room = found.base_bytes + (now.capacity - found.base_bytes) / found.factor
                met = found.trend.reaches(room, error=now.room_error + found.batch_bytes)
                if met is not None and met[0] - timeline.now_s <= view.limit(self.record, "reach") * passed:
                    hit_s = met
            meets = hit_s is not None and (ends_s is None or hit_s[0] <= ends_s)
            per_item = found.trend.slope * passed / opened.items_done if opened.items_done else None
            yield Signal(
                "eval_accumulation",
                gpu=device.index,
                phase="eval",
                severity=Severity.WARNING if meets else Severity.INFO,
                summary=f"this evaluation has kept {gib(found.accumulated_bytes)} on the GPU and keeps on"
                + (f": full in {duration(max(0.0, hit_s[0] - timeline.now_s))}" if meets and hit_s is not None else ""),
                evidence={
                    **now.evidence(),
                    "bytes_per_s": round(found.trend.slope),
                    "bytes_per_item": None if per_item is None else round(per_item),
                    "accumulated_bytes": round(found.accumulated_bytes),
                    "peak_factor": round(found.factor, 2),
                    "items_done": opened.items_done,
                    "items_total": opened.items_total,
                },
                forecast=Forecast(at_s=round(hit_s[0], 1), low=round(hit_s[1], 1), high=round(hit_s[2], 1))
                if meets and hit_s is not None and hit_s[2] != float("inf")
                else None,
            )

    @staticmethod
    def _ends_s(timeline: Timeline, passed: float, done: float | None, total: float | None) -> float | None:
        if done and total and done > 0:
            return timeline.now_s + passed * max(0.0, total - done) / done
        usual = usual_duration_s(timeline)
        return None if usual is None else timeline.now_s - passed + usual * 1.1
