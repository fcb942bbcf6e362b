"""The smallest traces that raise each code and cause of the waiting family."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from trainbudget.events import AnyEvent, Event, Gpu, Progress, Step
from unit.engine.traces import Build


def waiting(
    wait_s: float = 0.6, step_s: float = 0.4, *, steps: int = 120, utilization: float | None = None,
    host: dict[str, Any] | None = None, **header: Any,
) -> Build:  # fmt: skip
    """Every step waits; the GPU works in the steps alone unless `utilization` says otherwise."""
    build = Build(**header).gpu()
    build.reading[0]["utilization_ratio"] = 0.95 * step_s / (step_s + wait_s) if utilization is None else utilization
    build.host.update({"cpu_ratio": 0.1, "loader_workers": 0, **(host or {})})
    return build.start().steps(steps, step_s, wait_s=wait_s)


def input_bound(wait_s: float = 0.6, **more: Any) -> list[AnyEvent]:
    return waiting(wait_s, **more).end()


def storage() -> list[AnyEvent]:
    return input_bound(host={"io_wait_ratio": 0.3, "loader_workers": 4})


def tokenize() -> list[AnyEvent]:
    """Full CPUs, and the wait goes with the tokens."""

    def fields(step: int) -> dict[str, Any]:
        tokens = 1000.0 + 500.0 * (step % 7)
        return {"tokens": tokens, "data_wait_s": 0.0003 * tokens}

    return late(fields, host={"cpu_ratio": 0.97, "loader_workers": 8})


def burst(workers: int = 6) -> list[AnyEvent]:
    """All workers finish at once: every `workers`-th batch is late, the others are there."""

    def fields(step: int) -> dict[str, Any]:
        return {"data_wait_s": 3.0 if step % workers == 0 else 0.002}

    return late(fields, host={"cpu_ratio": 0.4, "loader_workers": workers})


def late(
    fields: Callable[[int], dict[str, Any]], *, steps: int = 120, step_s: float = 0.4, host: dict[str, Any]
) -> list[AnyEvent]:
    """Steps whose single waits differ: `fields(step)["data_wait_s"]` each."""
    build = Build().gpu()
    build.reading[0]["utilization_ratio"] = 0.4
    build.host.update(host)
    build.start()
    for step in range(1, steps + 1):
        more = fields(step)
        build.steps(1, step_s, **{"wait_s": more.pop("data_wait_s"), **more})
    return build.end()


def cold_cache(second_wait_s: float = 0.01) -> list[AnyEvent]:
    """The first epoch reads from a disk, the second one from memory."""
    build = Build(settings={"num_train_epochs": 3}).gpu()
    build.host.update(loader_workers=4, io_wait_ratio=0.3, read_bytes_per_s=2e8)
    build.reading[0]["utilization_ratio"] = 0.4
    build.start().moment("epoch_begin").steps(150, 0.4, wait_s=0.6).moment("epoch_end")
    build.host["io_wait_ratio"] = 0.0
    build.reading[0]["utilization_ratio"] = 0.9 if second_wait_s < 0.1 else 0.4
    return build.moment("epoch_begin").steps(150, 0.4, wait_s=second_wait_s).moment("epoch_end").end()


def epochs(gap_s: float = 3.2, steps: int = 10, step_s: float = 0.2, count: int = 10, *, eval_s: float = 0.0) -> list[AnyEvent]:
    build = Build(framework="lightning").gpu().start()
    for epoch in range(count):
        build.moment("epoch_begin", epoch=epoch)
        build.reading[0]["utilization_ratio"] = 0.0
        build.steps(1, step_s, wait_s=gap_s)
        build.reading[0]["utilization_ratio"] = 0.95
        build.steps(steps - 1, step_s, wait_s=0.004).moment("epoch_end", epoch=epoch)
        if eval_s:
            build.phase("eval", eval_s)
    return build.end()


def optimizer_offload(share: float = 0.9, *, steps: int = 40, step_s: float = 15.0, **fields: Any) -> list[AnyEvent]:
    build = Build().gpu()
    build.reading[0]["utilization_ratio"] = 1.0 - share
    busy = {"gpu_busy_s": (1.0 - share) * step_s, "optimizer_s": share * step_s, **fields}
    return build.start().steps(steps, step_s, **busy).end()


def naive_model_parallel(device_map: str | None = "auto", *, in_turns: bool = True, steps: int = 150) -> list[AnyEvent]:
    """Two GPUs, each busy half of the time."""
    build = Build().gpu(0).gpu(1)
    if device_map is not None:
        build.model(device_map=device_map)
    build.start()
    for step in range(steps):
        first = 0.95 if step % 2 else 0.03
        build.reading[0]["utilization_ratio"] = first
        build.reading[1]["utilization_ratio"] = 0.98 - first if in_turns else first
        build.steps(1)
    return build.end()


def unused_gpu(utilization: float | None = 0.0, used: float = 0.0, *, steps: int = 200, gpus: int = 2) -> list[AnyEvent]:
    """The last GPU does nothing."""
    build = Build()
    for index in range(gpus):
        build.gpu(index)
    build.reading[gpus - 1].update(utilization_ratio=utilization, memory_used_bytes=used)
    build.allocator.pop(gpus - 1)
    return build.start().steps(steps).end()


def visible_gpu(utilization: float = 0.0, *, visible: bool = True, used: float = 0.0) -> list[AnyEvent]:
    """Another card that the job could use."""
    build = Build().gpu()
    build.add(Gpu(gpu=1, owned=False, visible=visible, name="NVIDIA A100-SXM4-80GB", memory_total_bytes=8e10))
    build.reading[1] = {"utilization_ratio": utilization, "memory_used_bytes": used}
    return build.start().steps(300).end()


def after_end(seconds: float, *, interactive: bool = False, moment: str = "train_end", **reading: Any) -> list[AnyEvent]:
    """Training is over and the process stays."""
    build = Build(interactive=interactive, framework="loop").gpu().start().steps(60).moment(moment)
    build.reading[0].update({"utilization_ratio": 0.0, "power_w": 60.0, **reading})
    return build.wait(seconds).end(train_end=False)


def gpu_idle(minutes: float = 15.0, phase: str = "eval") -> list[AnyEvent]:
    """An evaluation that runs on the CPU."""
    build = Build().gpu().start().steps(60)
    build.reading[0].update(utilization_ratio=0.0, power_w=60.0)
    build.phase(phase, 60.0 * minutes)
    build.reading[0].update(utilization_ratio=0.95, power_w=300.0)
    return build.steps(30).end()


def slow_start(startup_s: float = 700.0, *, steps: int = 60, **header: Any) -> list[AnyEvent]:
    build = Build(**header).gpu()
    build.reading[0]["utilization_ratio"] = 0.0
    build.phase("preprocess", startup_s).start(0.0)
    build.reading[0]["utilization_ratio"] = 0.95
    return build.steps(steps).end()


def recompile(
    long_s: float = 80.0, step_s: float = 0.5, *, times: int = 1, busy: bool = True, settings: dict[str, Any] | None = None,
    first_s: float | None = None, gpu_works: bool = False, counted: bool = False,
) -> list[AnyEvent]:  # fmt: skip
    """Steady steps with single long ones among them in which the GPU has nothing to do."""
    build = Build(settings=settings).gpu().start()
    if first_s is not None:
        spike(build, first_s, step_s, busy=busy, works=False)
    build.steps(60, step_s, **({"gpu_busy_s": 0.96 * step_s} if busy else {}))
    for number in range(times):
        if counted:
            build.add(Progress(t_s=build.t, recompiles=float(number + 1)))
        spike(build, long_s, step_s, busy=busy, works=gpu_works)
        build.steps(30, step_s, **({"gpu_busy_s": 0.96 * step_s} if busy else {}))
    return build.steps(60, step_s, **({"gpu_busy_s": 0.96 * step_s} if busy else {})).end()


def spike(build: Build, long_s: float, step_s: float, *, busy: bool, works: bool) -> None:
    start = build.t
    build.reading[0]["utilization_ratio"] = 0.97 if works else 0.01
    build.wait(long_s)
    build.reading[0]["utilization_ratio"] = 0.95
    build.step += 1
    worked = 0.97 * long_s if works else step_s
    build.events.append(Step(t_s=build.t, step=build.step, start_s=start, data_wait_s=0.004, gpu_busy_s=worked if busy else None))


def gc_pause(pause_s: float = 1.0, every: int = 10, *, steps: int = 300) -> list[AnyEvent]:
    build = Build().gpu().start()
    for _ in range(steps // every):
        build.steps(every)
        build.wait(pause_s)
        build.events.append(Event(t_s=build.t, event="gc", detail={"generation": 2, "duration_s": pause_s}))
    return build.end()


def launch_bound(busy: float = 0.4, *, cpu: float | None = 1.0, told: bool = True, **header: Any) -> list[AnyEvent]:
    build = Build(**header).gpu()
    build.reading[0]["utilization_ratio"] = busy
    build.host["process_cpu_ratio"] = cpu
    return build.start().steps(200, 0.5, **({"gpu_busy_s": 0.5 * busy} if told else {})).end()


def communication_bound(share: float = 0.45, world_size: int = 8) -> list[AnyEvent]:
    return Build(world_size=world_size).gpu().start().steps(150, communication_s=share).end()


MINIMAL: dict[str, Callable[[], list[AnyEvent]]] = {
    "gpu_idle": gpu_idle,
    "unused_gpu": unused_gpu,
    "input_bound/workers": input_bound,
    "input_bound/cpu": partial(input_bound, host={"cpu_ratio": 0.97, "loader_workers": 32}),
    "input_bound/storage": storage,
    "input_bound/cold_cache": cold_cache,
    "input_bound/tokenize": tokenize,
    "input_bound/burst": burst,
    "epoch_start_overhead": epochs,
    "optimizer_offload": optimizer_offload,
    "naive_model_parallel": naive_model_parallel,
    "finished_holding_gpu": partial(after_end, 700.0),
    "notebook_idle": partial(after_end, 1900.0, interactive=True, moment="interrupt"),
    "slow_start": slow_start,
    "recompile": partial(recompile, settings={"torch_compile": True}),
    "gc_pause": gc_pause,
    "launch_bound": launch_bound,
    "communication_bound": communication_bound,
}
