"""What a device is like when it works: clock and power of its first busy readings, the reference for later ones."""

from __future__ import annotations

from trainbudget.engine.tracks.series import median
from trainbudget.events import Reading

#: Utilization above which a reading shows a device at work: clocks, power and link of an idle one are its own affair.
BUSY_UTILIZATION = 0.5
#: Busy readings that make a reference, or the seconds after which fewer do: heat and faults of a run's first minutes must not
#: become what is usual.
REFERENCE_READINGS = 30
REFERENCE_S = 60.0
#: Flags of a clock that is held down (nvidia-smi's names).
SLOWED = frozenset({"sw_thermal_slowdown", "hw_thermal_slowdown", "hw_slowdown", "hw_power_brake_slowdown"})
#: A reference of fewer readings is not one.
MIN_READINGS = 5


class LoadTrack:
    """Learns from the first busy readings of training (30, or those of a minute), then costs nothing."""

    def __init__(self) -> None:
        self.learning = True
        self._since_s: float | None = None
        self._count = 0
        self._clocks: list[float] = []
        self._powers: list[float] = []
        self._memory: list[float] = []
        self._reference: tuple[float | None, float | None, float | None] | None = None

    @property
    def clock_hz(self) -> float | None:
        """Median SM clock at work, or None where it was not answered often enough."""
        return self._learned()[0]

    @property
    def power_w(self) -> float | None:
        """Median power at work."""
        return self._learned()[1]

    @property
    def memory_utilization_ratio(self) -> float | None:
        """Median share of time in which memory was read or written, at work."""
        return self._learned()[2]

    def on_reading(self, event: Reading) -> None:
        """Take a reading made while steps go on; one that is not busy is passed over."""
        if event.utilization_ratio is not None and event.utilization_ratio < BUSY_UTILIZATION:
            return
        self._reference = None
        if self._since_s is None:
            self._since_s = event.t_s
        # A clock that is already held down is no reference.
        if event.sm_clock_hz is not None and (not event.throttle or SLOWED.isdisjoint(event.throttle)):
            self._clocks.append(event.sm_clock_hz)
        if event.power_w is not None:
            self._powers.append(event.power_w)
        if event.memory_utilization_ratio is not None:
            self._memory.append(event.memory_utilization_ratio)
        self._count += 1
        if self._count >= REFERENCE_READINGS or (self._count >= MIN_READINGS and event.t_s - self._since_s >= REFERENCE_S):
            self.learning = False

    def _learned(self) -> tuple[float | None, float | None, float | None]:
        if self._reference is None:
            self._reference = (_median(self._clocks), _median(self._powers), _median(self._memory))
        return self._reference


def _median(values: list[float]) -> float | None:
    return median(values) if len(values) >= MIN_READINGS else None
