"""The smallest traces that raise each code of the hardware family."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from trainbudget.events import AnyEvent
from unit.engine.traces import Build


def cards(count: int = 1, *, steps: int = 60, **header: Any) -> Build:
    """Equal healthy cards under load that tell their flags."""
    build = Build(**header)
    for index in range(count):
        build.gpu(index)
        build.reading[index]["throttle"] = []
    return build.start().steps(steps)


def hot(
    clock_hz: float | None = 1.0e9, temperature_c: float | None = 86.0, flags: tuple[str, ...] | None = ("sw_thermal_slowdown",),
    *, step_s: float = 1.4, **header: Any,
) -> list[AnyEvent]:  # fmt: skip
    """A card that heats up in mid-run."""
    build = cards(**header)
    build.reading[0].update(sm_clock_hz=clock_hz, temperature_c=temperature_c, throttle=None if flags is None else list(flags))
    return build.steps(150, step_s).end()


def untold(field: str, **reading: Any) -> list[AnyEvent]:
    """A hot card that never tells one of its values."""
    build = Build().gpu()
    build.reading[0].update({"throttle": [], field: None})
    build.start().steps(60)
    told = {"sm_clock_hz": 1.0e9, "temperature_c": 86.0, "throttle": ["sw_thermal_slowdown"], **reading}
    build.reading[0].update({name: value for name, value in told.items() if name != field})
    return build.steps(150, 1.4).end()


def capped(
    power_w: float | None = 235.0,
    clock_hz: float = 1.06e9,
    flags: tuple[str, ...] = ("sw_power_cap",),
    *,
    count: int = 4,
    **reading: Any,
) -> list[AnyEvent]:
    """Card 1 (or the only one) with a power flag."""
    build = Build()
    for index in range(count):
        build.gpu(index)
        build.reading[index]["throttle"] = []
    build.reading[min(1, count - 1)].update({"power_w": power_w, "sm_clock_hz": clock_hz, "throttle": list(flags), **reading})
    return build.start().steps(200).end()


def link(gen: int = 2, width: int = 16, *, count: int = 2, every: bool = False, utilization: float = 0.95) -> list[AnyEvent]:
    """Card 1 (the only one, or every one) on a slow link."""
    build = Build()
    for index in range(count):
        build.gpu(index)
        if every or index == min(1, count - 1):
            build.reading[index].update(pcie_gen=gen, pcie_width=width, utilization_ratio=utilization)
    return build.start().steps(200).end()


def ecc(*, corrected: float = 0.0, uncorrected: float = 0.0, before: float = 0.0) -> list[AnyEvent]:
    """Counters that stand at `before` and rise by so much in mid-run."""
    build = Build().gpu()
    build.reading[0].update(ecc_corrected=before, ecc_uncorrected=before)
    build.start().steps(60)
    build.reading[0].update(ecc_corrected=before + corrected, ecc_uncorrected=before + uncorrected)
    return build.steps(60).end()


def xid(number: int = 79, gpu: int | None = 0, *, times: int = 1) -> list[AnyEvent]:
    build = cards()
    for _ in range(times):
        build.moment("xid", gpu=gpu, xid=number).steps(10)
    return build.steps(30).end()


MINIMAL: dict[str, Callable[[], list[AnyEvent]]] = {
    "thermal_throttle": hot,
    "power_cap": capped,
    "pcie_degraded": link,
    "ecc_errors": partial(ecc, uncorrected=1.0),
    "xid": xid,
}
