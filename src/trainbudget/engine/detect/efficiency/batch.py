"""Micro-batch x accumulation x ranks: is it what was set, and is it the quick way to get it."""

from __future__ import annotations

from collections.abc import Iterable

from trainbudget.engine.cards import GIB
from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.detect.efficiency.evidence import fullest, rest_bytes, settled
from trainbudget.engine.detect.efficiency.memory_use import FULL_RATIO
from trainbudget.engine.detect.efficiency.settings_words import accumulation, number, settings_of
from trainbudget.engine.timeline import Timeline
from trainbudget.engine.tracks.series import median
from trainbudget.findings import CodeRecord, Route, Severity, Threshold


class BatchArithmetic(BaseDetector):
    """The effective batch is not the product of the settings, or is put together from needlessly small pieces."""

    record = CodeRecord(
        code="batch_arithmetic",
        family="efficiency",
        severity=Severity.INFO,
        title="The batch is not put together as it could be",
        condition="A step holds a quarter fewer or half as many samples again as micro-batch x accumulation (times ranks) says; "
        "or batches are accumulated although twice the micro-batch (at rest + 2 x activations) would stay below 90 % of memory.",
        silent="Where settings, samples, peaks or limits are unknown; in the first 200 steps; when the trial of batch sizes is "
        "still on.",
        evidence={
            "what": "effective_batch or small_micro_batch",
            "expected_samples": "micro-batch x accumulation, as set",
            "samples": "median of a step",
            "micro_batch": "as set, or as the last train_begin said",
            "accumulation": "micro-batches a step",
            "doubled_bytes": "estimated peak with twice the micro-batch",
            "limit_bytes": "may be held",
        },
        thresholds=(
            Threshold(
                name="fewer_ratio",
                default=0.75,
                unit="ratio",
                reason="last batches of an epoch are short, medians of 100 are not",
            ),
            Threshold(name="more_ratio", default=1.5, unit="ratio", reason="a factor of two is the smallest slip of this kind"),
            Threshold(name="steps", default=200.0, unit="steps", reason="peaks of two windows of steps have been seen"),
        ),
        levers=("L08", "L39"),
        route=Route.WEEKLY,
        runbook="Effective batch = micro-batch x accumulation x ranks. Where it differs from what the learning rate was chosen "
        "for, change the learning rate or accumulation. Where memory is free, double the micro-batch and halve accumulation.",
    )
    every_s = 30.0
    clear_s = 60.0

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        settings = timeline.header.settings
        if settings is None or not settled(timeline, view.limit(self.record, "steps")):
            return
        accumulated = accumulation(timeline)
        micro = number(settings_of(timeline).get("per_device_train_batch_size"))
        if accumulated is None:
            return
        signal = self._product(view, micro, accumulated) if micro is not None else None
        if signal is None and accumulated > 1:
            signal = self._small(view, micro, accumulated)
        if signal is not None:
            yield signal

    def _product(self, view: View, micro: float, accumulated: int) -> Signal | None:
        timeline = view.timeline
        samples = median([r.event.samples / r.count for r in timeline.steps.window() if r.event.samples is not None])
        if samples is None or samples <= 0.0:
            return None
        expected = micro * accumulated
        fits = any(
            view.limit(self.record, "fewer_ratio") <= samples / (expected * times) <= view.limit(self.record, "more_ratio")
            for times in _multiples(timeline)
        )
        if fits:
            return None
        session = timeline.run.session
        real = session.batch_size if session is not None and session.batch_size is not None else micro
        return Signal(
            "batch_arithmetic",
            summary=f"a step holds {samples:.0f} samples, the settings say {micro:.0f} x {accumulated} = {expected:.0f}",
            evidence={
                "what": "effective_batch",
                "expected_samples": expected,
                "samples": samples,
                "micro_batch": real,
                "accumulation": accumulated,
                "doubled_bytes": None,
                "limit_bytes": None,
            },
        )

    def _small(self, view: View, micro: float | None, accumulated: int) -> Signal | None:
        found = fullest(view.timeline)
        if found is None:
            return None
        device, need, limit = found
        rest = rest_bytes(device)
        if rest is None or need < rest:
            return None
        doubled = rest + 2.0 * (need - rest)
        if doubled >= FULL_RATIO * limit:
            return None
        return Signal(
            "batch_arithmetic",
            summary=f"{accumulated} micro-batches a step at a peak of {need / GIB:.1f} of {limit / GIB:.1f} GiB: twice the "
            f"micro-batch would take about {doubled / GIB:.1f} GiB",
            evidence={
                "what": "small_micro_batch",
                "expected_samples": None if micro is None else micro * accumulated,
                "samples": None,
                "micro_batch": micro,
                "accumulation": accumulated,
                "doubled_bytes": round(doubled),
                "limit_bytes": limit,
            },
        )


def _multiples(timeline: Timeline) -> tuple[int, ...]:
    """What the product may be multiplied with: samples may be this rank's or the job's, and one process may drive several "
    "GPUs."""
    gpus, world = max(1, len(timeline.owned)), timeline.world_size
    return (1, gpus, world, gpus * world)
