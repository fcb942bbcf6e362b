"""Single steps that took far longer than the others, and what each of them was: a recompilation, or something else."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from trainbudget.engine.tracks.device import DeviceTrack
from trainbudget.engine.tracks.pauses import PauseTrack
from trainbudget.engine.tracks.steps import StepRecord, StepTrack

#: A step this many times the median is a spike: batches of variable length stay within a factor of 2 to 3.
SPIKE_RATIO = 5.0
#: ... and this much longer: a compile takes seconds (torch.compile of a small model 5-20 s), a slow disk read takes less.
SPIKE_S = 3.0
#: Share of a spike in which the GPU must be idle to be a compile: the compiler works on the host.
IDLE_SHARE = 0.5
#: A first step this long, and this many times the steady one, was a compilation: reading weights and autotuning take less.
COMPILE_FIRST_S = 20.0
COMPILE_FIRST_RATIO = 20.0


#: The compiler's counter may rise in the trace this long after the step in which it compiled.
COUNTED_LATE_S = 60.0


@dataclass(frozen=True, slots=True)
class Spike:
    """One long step. Seconds are wall seconds; `idle_s` None = nobody knows how busy the GPU was."""

    t_s: float
    step: int
    duration_s: float
    usual_s: float
    idle_s: float | None
    gc_s: float
    recompiled: bool  # the compiler's own counter rose since the step before

    @property
    def extra_s(self) -> float:
        """How much longer than usual."""
        return self.duration_s - self.usual_s


class SpikeTrack:
    """`recent` holds the newest spikes after warm-up, `compiled_first` whether the session began with a compile-like step."""

    def __init__(self) -> None:
        self.recent: deque[Spike] = deque(maxlen=64)
        self.compiled_first: bool | None = None
        self.compile_s: float | None = None  # longest first step of a session that stood out: how long a compilation takes
        self._first: tuple[float, float | None] | None = None  # of the session's first step: seconds, idle seconds
        self._recompiles: float | None = None

    def begin_session(self) -> None:
        self.compiled_first = None
        self._first = None

    def on_step(
        self,
        record: StepRecord,
        steps: StepTrack,
        recompiles: float | None,
        pauses: PauseTrack,
        devices: Iterable[DeviceTrack] = (),
    ) -> Spike | None:
        """Look at a step that was just added to `steps`; the spike it is, or None.

        `devices` are asked how idle they were where the step itself does not tell.
        """
        if record.duration_s < SPIKE_S and recompiles is None and self.compiled_first is not None:
            return None  # the common case must cost nothing
        grown = recompiles is not None and recompiles > (self._recompiles or 0.0)
        self._recompiles = recompiles if recompiles is not None else self._recompiles
        if grown and self.recent and record.event.t_s - self.recent[-1].t_s <= COUNTED_LATE_S:
            self.recent[-1] = replace(self.recent[-1], recompiled=True)  # the counter is read now and then, after the fact
        baseline_s = steps.baseline_s()
        if baseline_s is None or steps.warming:
            if self._first is None:
                self._first = (record.duration_s, _idle_s(record, devices))
            return None
        if self.compiled_first is None:
            self.compiled_first = self._first is not None and _compile_like(*self._first, baseline_s)
            if self._first is not None and self._first[0] >= SPIKE_RATIO * baseline_s:
                self.compile_s = max(self.compile_s or 0.0, self._first[0])
        # The baseline is a constant and cheap; the median of now is asked only when a step stands out against it.
        if record.count > 1 or record.duration_s < SPIKE_RATIO * baseline_s or record.duration_s - baseline_s < SPIKE_S:
            return None
        usual_s = steps.median_s() or baseline_s
        if record.duration_s < SPIKE_RATIO * usual_s or record.duration_s - usual_s < SPIKE_S:
            return None
        idle_s = _idle_s(record, devices)
        gc_s = pauses.since(record.event.start_s if record.event.start_s is not None else record.event.t_s)[0]
        spike = Spike(record.event.t_s, record.step, record.duration_s, usual_s, idle_s, gc_s, grown)
        self.recent.append(spike)
        return spike


def _compile_like(first_s: float, idle_s: float | None, usual_s: float) -> bool:
    long = first_s >= max(COMPILE_FIRST_S, COMPILE_FIRST_RATIO * usual_s)
    return long and idle_s is not None and idle_s >= IDLE_SHARE * first_s


def _idle_s(record: StepRecord, devices: Iterable[DeviceTrack]) -> float | None:
    """Seconds of a long step in which the GPU was idle: measured, else from the utilization of the busiest device in it."""
    if record.busy_s is not None:
        return max(0.0, record.duration_s - record.busy_s)
    start_s = record.event.start_s
    if start_s is None or record.duration_s < SPIKE_S:
        return None
    known = [u for d in devices if (u := d.utilization_mean(start_s, minimum=3)) is not None]
    return (1.0 - min(1.0, max(known))) * record.duration_s if known else None


def is_recompile(spike: Spike, compiles: bool | None, compiled_first: bool | None) -> bool:
    """Whether a spike was a compilation.

    Args:
        compiles: whether the run uses a compiler, None = unknown. Then a first step that looked like one counts.
        compiled_first: see `SpikeTrack`.
    """
    if spike.recompiled:
        return True
    if compiles is False or (compiles is None and not compiled_first):
        return False
    return spike.idle_s is not None and spike.idle_s >= IDLE_SHARE * spike.duration_s and spike.gc_s < IDLE_SHARE * spike.extra_s
