"""The smallest traces that raise each code and cause of the stuck family, and monitor_degraded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from trainbudget.events import AnyEvent, BackendError, Rank, Tick
from unit.engine.traces import Build


def running(steps: int = 60, step_s: float = 1.0, *, gpus: int = 1, untold: tuple[str, ...] = (), **header: Any) -> Build:
    """A healthy run in full swing; `untold` values are never answered."""
    build = Build(**header)
    for index in range(gpus):
        build.gpu(index)
        build.reading[index] = {**build.reading[index], "memory_utilization_ratio": 0.45, **dict.fromkeys(untold)}
    return build.start().steps(steps, step_s)


def idle(build: Build, *gpus: int) -> Build:
    for index in gpus or tuple(build.reading):
        build.reading[index].update(utilization_ratio=0.0, power_w=60.0, memory_utilization_ratio=0.0, sm_clock_hz=2.1e8)
    return build


def spinning(build: Build, *gpus: int, power_w: float | None = 110.0, memory: float | None = 0.01) -> Build:
    """GPUs that wait in a collective."""
    for index in gpus or tuple(build.reading):
        build.reading[index].update(utilization_ratio=1.0, power_w=power_w, memory_utilization_ratio=memory)
    return build


def stopped(build: Build, seconds: float = 200.0) -> list[AnyEvent]:
    return build.wait(seconds).end("interrupted", train_end=False)


def hang(seconds: float = 200.0, step_s: float = 1.0) -> list[AnyEvent]:
    return stopped(idle(running(step_s=step_s)), seconds)


def collective_hang(power_w: float | None = 110.0, memory: float | None = 0.01, **header: Any) -> list[AnyEvent]:
    header = {"world_size": 4, **header}
    return stopped(spinning(running(**header), power_w=power_w, memory=memory))


def left_early(*away: int, told: bool = True) -> list[AnyEvent]:
    """Ranks that are away while the others spin, told by the words of the others; without power and memory traffic."""
    untold = () if told else ("power_w", "memory_utilization_ratio")
    build = running(world_size=4, untold=untold)
    spinning(build, power_w=110.0 if told else None, memory=0.01 if told else None)
    for _ in range(20):
        for rank in (1, 2, 3):
            gone = rank in away
            word = {"utilization_ratio": 0.0, "power_w": 60.0, "state": "silent"} if gone else {"utilization_ratio": 1.0}
            build.add(Rank(t_s=build.t, rank=rank, step=build.step, **word))  # type: ignore[arg-type]
        build.wait(10.0)
    return build.end("interrupted", train_end=False)


def no_first_step(seconds: float = 660.0) -> list[AnyEvent]:
    return idle(Build().gpu()).start().wait(seconds).end("interrupted", train_end=False)


def gpu_lost(code: int = 15, *, hangs: bool = True) -> list[AnyEvent]:
    build = running()
    build.reading[0] = {"errors": {"handle": code}}
    return stopped(build) if hangs else build.steps(200).end()


def gpu_unavailable(code: int = 999, query: str = "init") -> list[AnyEvent]:
    """Every query fails while steps go on."""
    build = running()
    build.reading[0] = {"errors": {query: code}}
    return build.steps(100).end()


def no_backend(code: str | int, text: str | None = None) -> list[AnyEvent]:
    build = Build(backend="none", backend_error=BackendError(code=code, text=text))
    return build.start().steps(30).end()


def sampler_stalled(seconds: float = 60.0) -> list[AnyEvent]:
    build = running()
    build.reading.clear()
    return build.steps(int(seconds)).end()


def monitor_degraded(query: str = "utilization", field: str = "utilization_ratio", code: int | None = 999) -> list[AnyEvent]:
    """One query vanishes, with an error or without a word."""
    build = running()
    build.reading[0][field] = None
    if code is not None:
        build.reading[0]["errors"] = {query: code}
    return build.steps(160).end()


def asleep(seconds: float = 3600.0) -> list[AnyEvent]:
    """The machine sleeps: not a line, then everything goes on."""
    build = running()
    build.t += seconds
    build._next_reading += seconds
    build._next_host += seconds
    return build.add(Tick(t_s=build.t)).steps(60).end()


MINIMAL: dict[str, Callable[[], list[AnyEvent]]] = {
    "hang": hang,
    "collective_hang": collective_hang,
    "no_first_step": no_first_step,
    "gpu_lost": gpu_lost,
    "gpu_unavailable": gpu_unavailable,
    "gpu_unavailable/library_not_found": partial(no_backend, 12),
    "gpu_unavailable/driver_mismatch": partial(gpu_unavailable, 18),
    "gpu_unavailable/permission": partial(no_backend, 4),
    "gpu_unavailable/cpu_build": partial(no_backend, "cpu_build", "torch is built without CUDA"),
    "gpu_unavailable/unknown": gpu_unavailable,
    "sampler_stalled": sampler_stalled,
    "monitor_degraded": monitor_degraded,
}
