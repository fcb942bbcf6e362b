"""The body of a mock card: power, temperature with inertia, clocks and energy that follow its load."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass

GIB = 1 << 30

NAME = "NVIDIA A100-SXM4-80GB"
COMPUTE_CAPABILITY = "8.0"
#: 81,920 MiB, of which the driver keeps 869 MiB for itself, as an idle card of this kind shows them.
MEMORY_TOTAL_BYTES = 85_899_345_920.0
MEMORY_RESERVED_BYTES = 911_212_544.0
MEMORY_LIMIT_BYTES = MEMORY_TOTAL_BYTES - MEMORY_RESERVED_BYTES
#: What a driver holds on a card that nobody uses.
MEMORY_UNUSED_BYTES = 8_178_892.0
#: A CUDA context of this generation with its kernels loaded.
CONTEXT_BYTES = 0.45 * GIB

POWER_LIMIT_W = 400.0
_IDLE_W = 62.0
_BUSY_W = 345.0
#: A kernel that only spins (a collective that waits for a rank) draws little above idle.
_SPINNING_W = 104.0
_IDLE_CLOCK_HZ = 210e6
_BUSY_CLOCK_HZ = 1410e6
_SLOWED_CLOCK_HZ = 1005e6
_AMBIENT_C = 33.0
_BUSY_C = 63.0
_HOT_C = 97.0
_HELD_C = 88.0  # where a slowed clock keeps a hot card
_SLOWDOWN_C = 85.0
_TEMPERATURE_SECONDS = 18.0  # time constant of heat sink and fan together
_FANLESS_SECONDS = 6.0  # of the chip alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a card has to do: share of time with a kernel running, and what kind of work that is."""

    utilization_ratio: float = 0.0
    spinning: bool = False
    hot: bool = False  # its cooling has failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    utilization_ratio: float
    memory_utilization_ratio: float
    power_w: float
    temperature_c: float
    sm_clock_hz: float
    energy_j: float
    throttle: tuple[str, ...]


class CardBody:
    """One card. Same loads at the same times give the same telemetry."""

    def __init__(self, *, seed: int, speed: float) -> None:
        self._seed = seed
        self._speed = speed
        self._last_s: float | None = None
        self._temperature_c = _AMBIENT_C + noise(seed, 0)
        self._energy_j = 1.0e6

    def live(self, load: Load, now_s: float) -> Telemetry:
        """Let the time since the last call pass under `load`; time that does not go on changes nothing."""
        elapsed_s = 0.0 if self._last_s is None else max(0.0, now_s - self._last_s)
        self._last_s = now_s if self._last_s is None else max(self._last_s, now_s)
        shake = noise(self._seed, round(now_s * 10))
        busy = load.utilization_ratio > 0
        slowed = self._temperature_c > _SLOWDOWN_C and busy
        power_w = self._power_w(load, shake, slowed)
        self._warm_up(load, elapsed_s, slowed)
        self._energy_j += power_w * elapsed_s
        utilization = (
            min(1.0, max(0.0, load.utilization_ratio + 0.01 * shake))
            if 0 < load.utilization_ratio < 1
            else load.utilization_ratio
        )
        return Telemetry(
            utilization_ratio=round(utilization, 2),
            memory_utilization_ratio=0.0 if load.spinning else round(utilization * 0.56, 2),
            power_w=round(power_w, 3),
            temperature_c=float(round(self._temperature_c)),
            sm_clock_hz=_SLOWED_CLOCK_HZ if slowed else _BUSY_CLOCK_HZ if busy else _IDLE_CLOCK_HZ,
            energy_j=round(self._energy_j, 3),
            throttle=("sw_thermal_slowdown",) if slowed else () if busy else ("gpu_idle",),
        )

    def _power_w(self, load: Load, shake: float, slowed: bool) -> float:
        if load.spinning:
            return _SPINNING_W + shake
        working_w = (_BUSY_W - _IDLE_W) * load.utilization_ratio * (0.7 if slowed else 1.0)
        return _IDLE_W + shake + working_w * (1 + 0.03 * shake)

    def _warm_up(self, load: Load, elapsed_s: float, slowed: bool) -> None:
        top_c = _BUSY_C if not load.hot else _HELD_C if slowed else _HOT_C
        target_c = _AMBIENT_C + (top_c - _AMBIENT_C) * (0.2 if load.spinning else load.utilization_ratio)
        constant_s = _FANLESS_SECONDS if load.hot else _TEMPERATURE_SECONDS
        self._temperature_c += (target_c - self._temperature_c) * -math.expm1(-elapsed_s * self._speed / constant_s)


def noise(seed: int, position: int) -> float:
    """A number from -1 to 1 that looks random and is always the same for the same place."""
    return zlib.crc32(f"{seed}/{position}".encode()) / 0x7FFFFFFF - 1.0
