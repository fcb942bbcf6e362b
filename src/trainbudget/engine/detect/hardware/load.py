"""What a device did under load lately. Clocks, flags and links of an idle device are power saving and say nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice

from trainbudget.engine.timeline import Timeline
from trainbudget.engine.tracks.device import DeviceTrack, Sample
from trainbudget.engine.tracks.load import BUSY_UTILIZATION
from trainbudget.engine.tracks.series import median

#: Flags, clocks and links are judged over this time: a single hot minute or a link that retrains is over by then.
WINDOW_S = 120.0
#: Busy readings that must lie in it, and the time they must span.
LEAST_READINGS = 5
LEAST_SPAN_S = 50.0
#: Sampling every 10 s and slower gives too few readings in two minutes: then this many periods.
LEAST_PERIODS = 12

#: Power that shows a card at work where it does not tell its utilization: idle ones draw 5 to 25 % of their limit.
BUSY_POWER_RATIO = 0.5

THERMAL_FLAGS = frozenset({"sw_thermal_slowdown", "hw_thermal_slowdown"})
CAP_FLAGS = frozenset({"sw_power_cap"})
BRAKE_FLAGS = frozenset({"hw_power_brake_slowdown"})
#: Says that the hardware slowed itself down, not why: heat or the power brake.
UNCLEAR_FLAGS = frozenset({"hw_slowdown"})


@dataclass(frozen=True, slots=True)
class Load:
    """A device's busy readings of the last minutes, oldest first."""

    samples: list[Sample]

    @property
    def clock_hz(self) -> float | None:
        return median([s.sm_clock_hz for s in self.samples if s.sm_clock_hz is not None])

    @property
    def power_w(self) -> float | None:
        return median([s.power_w for s in self.samples if s.power_w is not None])

    @property
    def temperature_c(self) -> float | None:
        return median([s.temperature_c for s in self.samples if s.temperature_c is not None])

    def flagged(self, flags: frozenset[str]) -> float | None:
        """Share of the readings with one of the flags set, of those that tell flags; None where none does."""
        told = [s.throttle for s in self.samples if s.throttle is not None]
        return sum(1 for t in told if not flags.isdisjoint(t)) / len(told) if told else None


def load_of(
    timeline: Timeline, device: DeviceTrack, *, utilization: float = BUSY_UTILIZATION, assume_busy: bool = False
) -> Load | None:
    """The busy readings of the last two minutes, or None of too few.

    A reading that does not tell the utilization is busy where it draws half of the power limit; `assume_busy`: always, as
    long as steps go on.
    """
    window = device.window
    if not window or not timeline.run.training or not timeline.run.started:
        return None
    begun_s = timeline.run.session.first_step_end_s if timeline.run.session is not None else None
    since_s = timeline.now_s - WINDOW_S
    if len(window) > LEAST_PERIODS:
        since_s = min(since_s, window[-1 - LEAST_PERIODS].t_s)
    limit = device.info.power_limit_w
    at_work_w = BUSY_POWER_RATIO * limit if limit is not None else math.inf
    samples = [
        s
        for s in device.since(max(since_s, begun_s or 0.0))
        if (
            s.utilization_ratio >= utilization
            if s.utilization_ratio is not None
            else assume_busy or (s.power_w is not None and s.power_w >= at_work_w)
        )
    ]
    if len(samples) < LEAST_READINGS or samples[-1].t_s - samples[0].t_s < LEAST_SPAN_S:
        return None
    return Load(samples)


def lately_flagged(device: DeviceTrack, flags: frozenset[str]) -> bool:
    """Whether one of the newest readings has a flag: a cheap look before the window is read."""
    return any(s.throttle and not flags.isdisjoint(s.throttle) for s in islice(reversed(device.window), 6))


def peers_of(timeline: Timeline, device: DeviceTrack) -> list[DeviceTrack]:
    """The other own devices of the same model."""
    name = device.info.name
    return [d for d in timeline.owned if d is not device and name is not None and d.info.name == name]


def peer_clock_hz(timeline: Timeline, device: DeviceTrack) -> float | None:
    """Median clock of the peers under load now, or None without a busy one."""
    clocks = [load.clock_hz for d in peers_of(timeline, device) if (load := load_of(timeline, d)) is not None]
    return median([c for c in clocks if c is not None])
