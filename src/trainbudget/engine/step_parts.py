"""What a step's seconds were spent on: the gap before it, its wait for data, and itself, in parts by bucket."""

from __future__ import annotations

from typing import TypeAlias

from trainbudget.engine.timeline import Timeline
from trainbudget.engine.tracks.device import DeviceTrack
from trainbudget.engine.tracks.steps import StepRecord
from trainbudget.events import Step

#: Buckets and their seconds.
Parts: TypeAlias = list[tuple[str, float]]

#: A step's optimizer phase this large is not a GPU's: on a GPU it is a few per cent of the step (it reads and writes each
#: state once, while forward and backward read each weight per token); only a CPU optimizer takes a fifth.
OFFLOAD_SHARE = 0.2
#: A wait below this share of its step is not worth weighing.
NEGLIGIBLE_WAIT = 0.02
#: Utilization readings needed before a data wait is weighed with them.
WAIT_READINGS = 10
#: ... and how old the first of them may be: ten periods of 15 s.
SLOW_SAMPLING_S = 150.0


class StepParts:
    """Parts of one step each; what is not known stays in compute. `wait_assumed`: a data wait was charged whole, the GPU's
    part in it being unknown."""

    def __init__(self, timeline: Timeline) -> None:
        self._time = timeline
        self.wait_assumed = False

    def gap(self, begin: float, end: float, event: Step) -> Parts:
        """The time between a step and the wait for the next one: collections of garbage are known, the rest is not."""
        length = end - begin
        pauses = self._time.pauses.recent
        if not pauses or self._time.wall_s(pauses[-1][0]) <= begin:
            return [("other", length)]
        collected = 0.0
        for t_s, duration_s in reversed(pauses):
            end_s = self._time.wall_s(t_s)
            if end_s <= begin:
                break
            collected += max(0.0, min(end_s, end) - max(end_s - duration_s, begin))
        known = event.gpu_busy_s is not None or any(d.utilization_last_minute() is not None for d in self._time.owned)
        collected = min(collected, length)
        return [("host_gap" if known else "compute", collected), ("other", length - collected)]

    def wait(self, length: float, event: Step, record: StepRecord) -> Parts:
        """A data wait: waste for the part in which the GPU was idle, the rest is compute that overlapped it."""
        idle = length
        if event.data_wait_idle_s is not None:
            idle = min(length, event.data_wait_idle_s)
        elif length > NEGLIGIBLE_WAIT * record.duration_s:
            utilization = self._utilization(record)
            if utilization is None:
                self.wait_assumed = True
            else:
                idle = min(length, (1.0 - utilization) * (length + record.duration_s * record.count))
        return [("data_wait", idle)] if idle == length else [("data_wait", idle), ("compute", length - idle)]

    def inside(self, event: Step, record: StepRecord, *, warm: bool) -> Parts:
        """The step's own seconds; they sum to its duration."""
        if event.skipped or self._time.steps.is_repeated(event):
            return [("lost", record.duration_s * record.count)]
        if warm:
            return [("warmup", record.duration_s * record.count)]
        return self._shares(event, record)

    def _shares(self, event: Step, record: StepRecord) -> Parts:
        whole = record.duration_s * record.count
        idle = max(0.0, whole - event.gpu_busy_s) if event.gpu_busy_s is not None else 0.0
        if self._time.last_spike is not None and record is self._time.last_step and self._time.recompiled:
            compiled = idle if event.gpu_busy_s is not None else self._time.last_spike.extra_s
            return [("warmup", compiled), ("compute", whole - compiled)]
        optimizer = event.optimizer_s or 0.0
        if optimizer > OFFLOAD_SHARE * whole and event.gpu_busy_s is None:
            utilization = self._utilization(record)
            idle = min(optimizer, (1.0 - utilization) * whole) if utilization is not None else 0.0
        offload = min(idle, optimizer) if optimizer > OFFLOAD_SHARE * whole else 0.0
        communication = min(event.communication_s, whole - idle) if event.communication_s else 0.0
        compute = whole - idle - communication
        padding = 0.0
        if event.tokens and event.useful_tokens is not None:
            padding = compute * min(1.0, max(0.0, 1.0 - event.useful_tokens / event.tokens))
        if compute == whole and not padding:
            return [("compute", compute)]
        return [
            ("compute", compute - padding),
            ("padding", padding),
            ("communication", communication),
            ("optimizer_offload", offload),
            ("host_gap", idle - offload),
        ]

    def _utilization(self, record: StepRecord) -> float | None:
        """Utilization of the busiest owned GPU over the last minute (or the last readings of longer steps)."""
        span = 3.0 * record.interval_s * record.count
        since = self._time.now_s - span
        values = [
            _lately(d, self._time.now_s) if span <= 60.0 else d.utilization_mean(since, minimum=WAIT_READINGS)
            for d in self._time.owned
        ]
        return max((v for v in values if v is not None), default=None)


def _lately(device: DeviceTrack, now_s: float) -> float | None:
    """Mean utilization of the last minute, of the newest ten readings where a minute has fewer; None where they are old."""
    value, window = device.utilization_last_minute(minimum=WAIT_READINGS), device.window
    if value is not None or len(window) < WAIT_READINGS or window[-1].utilization_ratio is None:
        return value
    since_s = window[-WAIT_READINGS].t_s
    return device.utilization_mean(since_s, minimum=WAIT_READINGS) if now_s - since_s <= SLOW_SAMPLING_S else None
