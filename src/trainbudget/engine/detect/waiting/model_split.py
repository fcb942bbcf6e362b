"""A model laid over several GPUs that work one after another."""

from __future__ import annotations

from collections.abc import Iterable

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.detect.devices import mean_utilization
from trainbudget.engine.timeline import Timeline
from trainbudget.engine.tracks.device import DeviceTrack
from trainbudget.findings import CodeRecord, Route, Severity, Threshold
from trainbudget.quantities import percent

#: Readings by which two devices are compared, and how opposed they must be: beyond five standard errors of a correlation of
#: nothing (1 / sqrt(n)), which independent devices do not reach in years of looking.
PAIRED_READINGS = 60
OPPOSED = -0.35
STANDARD_ERRORS = 5.0
#: A wait for data this large explains half-idle GPUs by itself.
WAIT_RATIO = 0.15


class NaiveModelParallel(BaseDetector):
    """Several own GPUs are busy in turns: together they do the work of one."""

    record = CodeRecord(
        code="naive_model_parallel",
        family="waiting",
        severity=Severity.WARNING,
        title="GPUs work one after another",
        condition="Two or more own GPUs take part, their mean utilizations add up to 130 % at most, each is idle for a good "
        "part, and the model is split over them (device_map) or they are busy at opposite times.",
        silent="With one GPU per process; when the wait for data is above 15 %; when a GPU is unused (unused_gpu); where "
        "utilization is unknown.",
        evidence={
            "sum_of_utilization": "over the GPUs, 1 = one of them all the time",
            "utilization_ratios": "of each GPU",
            "device_map": "the split as the model says it",
            "correlation": "of the two busiest GPUs' readings, -1 = exactly in turns",
        },
        thresholds=(
            Threshold(
                name="sum_ratio",
                default=1.3,
                unit="GPUs",
                reason="in turns the sum is 1, and hand-over blurs it; any pipeline or data-parallel overlap goes beyond",
            ),
        ),
        levers=("L41",),
        route=Route.TICKET,
        runbook="device_map is made for inference. Train with FSDP or data parallelism if the model fits one GPU with "
        "sharding, else with tensor or pipeline parallelism; until then a single larger GPU is cheaper.",
    )
    every_s = 30.0
    hold_s = 25.0

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        if len(timeline.owned) < 2 or not timeline.run.training or timeline.run.open:
            return
        devices = [d for d in timeline.owned if d.active and not d.unused]
        if len(devices) < 2:
            return
        known = [(d, u) for d in devices if (u := mean_utilization(timeline, d)) is not None]
        if len(known) < len(devices):
            return
        means = [u for _, u in known]
        whole = sum(means)
        # Below a half even one GPU's work is not there: something else is missing. One that does nearly all is no turn.
        if not 0.5 <= whole <= view.limit(self.record, "sum_ratio") or max(means) > 0.85 * whole or max(means) > 0.8:
            return
        shares = timeline.step_shares.current()
        if shares is None or (shares.wait_ratio or 0.0) > WAIT_RATIO:
            return
        device_map = timeline.model.device_map if timeline.model is not None else None
        first, second = (d for d, _ in sorted(known, key=lambda pair: -pair[1])[:2])
        correlation = _correlation(timeline, first, second)
        if device_map is None and (correlation is None or correlation > OPPOSED):
            return
        yield Signal(
            "naive_model_parallel",
            summary=f"{len(devices)} GPUs work one after another: together {percent(whole)} of one",
            evidence={
                "sum_of_utilization": round(whole, 3),
                "utilization_ratios": [round(u, 3) for u in means],
                "device_map": device_map,
                "correlation": None if correlation is None else round(correlation, 2),
            },
        )


def _correlation(timeline: Timeline, first: DeviceTrack, second: DeviceTrack) -> float | None:
    """Of readings taken at the same time over the last minutes, or None of fewer than `PAIRED_READINGS`."""
    other = {round(s.t_s, 1): s.utilization_ratio for s in second.since(timeline.now_s - 600.0)}
    pairs = [
        (s.utilization_ratio, value)
        for s in first.since(timeline.now_s - 600.0)
        if s.utilization_ratio is not None and (value := other.get(round(s.t_s, 1))) is not None
    ]
    n = len(pairs)
    if n < PAIRED_READINGS:
        return None
    mean_a, mean_b = sum(a for a, _ in pairs) / n, sum(b for _, b in pairs) / n
    spread_a = sum((a - mean_a) ** 2 for a, _ in pairs)
    spread_b = sum((b - mean_b) ** 2 for _, b in pairs)
    if spread_a <= 0.0 or spread_b <= 0.0:
        return None
    value = float(sum((a - mean_a) * (b - mean_b) for a, b in pairs) / (spread_a * spread_b) ** 0.5)
    return value if abs(value) >= STANDARD_ERRORS / n**0.5 else 0.0
