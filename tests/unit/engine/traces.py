"""A small builder of traces: time goes on by steps, phases and pauses; readings and host lines come by themselves.

    build = Build(settings={"bf16": True}, budget={"step_time_s": 1.0})
    build.gpu().start(10.0)
    build.steps(200, 1.0, wait_s=0.01)
    build.phase("eval", 30.0)
    events = build.end()

Planting a fault = changing `build.reading[0]`, `build.allocator[0]`, `build.host` or the arguments of `steps`. A value that
is None is absent from the lines.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from trainbudget.events import (
    Allocator,
    AnyEvent,
    BudgetFact,
    End,
    Event,
    Gpu,
    Header,
    Host,
    HostReading,
    Model,
    Phase,
    PhaseBegin,
    Price,
    Reading,
    Step,
)

GIB = float(1024**3)


class Build:
    """`events` so far, `t` = now. All methods but `end` return the builder."""

    def __init__(
        self,
        *,
        framework: str = "huggingface",
        settings: dict[str, Any] | None = None,
        budget: dict[str, Any] | None = None,
        price: float | None = 2.0,
        currency: str = "USD",
        spot: bool | None = None,
        world_size: int = 1,
        rank: int = 0,
        platform: str = "linux",
        interactive: bool = False,
        sample_period_s: float = 1.0,
        host_period_s: float = 10.0,
        **header: Any,
    ) -> None:
        self.t = 0.0
        self.step = 0
        self.sample_period_s = sample_period_s
        self.host_period_s = host_period_s
        self.reading: dict[int, dict[str, Any]] = {}
        self.allocator: dict[int, dict[str, Any]] = {}
        self.host: dict[str, Any] = {
            "rss_bytes": 4 * GIB,
            "memory_available_bytes": 200 * GIB,
            "cpu_ratio": 0.2,
            "loader_workers": 4,
        }
        self._next_reading = 0.3 * sample_period_s
        self._next_host = host_period_s
        self.events: list[AnyEvent] = [
            Header(
                run="test",
                framework=framework,
                sample_period_s=sample_period_s,
                world_size=world_size,
                rank=rank,
                local_rank=rank,
                host=Host(platform=platform, cpu_count=32, memory_limit_bytes=256 * GIB, interactive=interactive),
                settings=settings,
                budget=BudgetFact(**budget) if budget else None,
                price=None if price is None else Price(per_gpu_hour=price, currency=currency, source="given", spot=spot),
                **header,
            )
        ]

    def add(self, *events: AnyEvent) -> Build:
        """Facts as they are, at their own `t_s` (now, where it is 0)."""
        for event in events:
            if event.t_s == 0.0:
                event.t_s = self.t
            self.events.append(event)
        return self

    def model(self, **fields: Any) -> Build:
        return self.add(Model(t_s=self.t, **fields))

    def gpu(self, index: int = 0, *, limit_gib: float = 79.0, **fields: Any) -> Build:
        """A healthy A100 (busy, 300 of 400 W, 50 GiB used) unless told otherwise."""
        self.events.append(
            Gpu(
                t_s=self.t,
                gpu=index,
                **{
                    "uuid": f"GPU-{index:08d}",
                    "name": "NVIDIA A100-SXM4-80GB",
                    "memory_total_bytes": limit_gib * GIB + 0.6 * GIB,
                    "memory_limit_bytes": limit_gib * GIB,
                    "power_limit_w": 400.0,
                    "power_default_limit_w": 400.0,
                    "mig": False,
                    "pcie_gen_max": 4,
                    "pcie_width_max": 16,
                    "compute_capability": "8.0",
                    "owned": True,
                    **fields,
                },
            )
        )
        self.reading[index] = {
            "utilization_ratio": 0.95,
            "memory_used_bytes": 0.65 * limit_gib * GIB,
            "memory_free_bytes": 0.35 * limit_gib * GIB,
            "power_w": 300.0,
            "temperature_c": 60.0,
            "sm_clock_hz": 1.41e9,
            "pcie_gen": 4,
            "pcie_width": 16,
        }
        self.allocator[index] = {
            "allocated_bytes": 0.35 * limit_gib * GIB,
            "reserved_bytes": 0.62 * limit_gib * GIB,
            "peak_allocated_bytes": 0.60 * limit_gib * GIB,
            "peak_reserved_bytes": 0.62 * limit_gib * GIB,
            "alloc_retries": 0,
            "ooms": 0,
        }
        return self

    def start(self, startup_s: float = 10.0, **detail: Any) -> Build:
        """Start-up, then `train_begin`."""
        return self.wait(startup_s).moment("train_begin", **detail)

    def moment(self, event: str, **detail: Any) -> Build:
        self.events.append(Event(t_s=self.t, event=event, detail=detail or None))
        return self

    def wait(self, seconds: float) -> Build:
        """Time goes on with readings and host lines and nothing else."""
        until = self.t + seconds
        while True:
            upcoming = min(self._next_reading, self._next_host)
            if upcoming > until:
                break
            self.t = upcoming
            if self._next_reading <= self._next_host:
                for index, fields in self.reading.items():
                    self.events.append(Reading(t_s=self.t, gpu=index, **fields))
                self._next_reading += self.sample_period_s
            else:
                if self.host:
                    self.events.append(HostReading(t_s=self.t, **self.host))
                self._next_host += self.host_period_s
        self.t = until
        return self

    def steps(
        self,
        count: int,
        step_s: float = 1.0,
        *,
        wait_s: float | None = 0.01,
        loss: Callable[[int], float | None] | float | None = None,
        allocator_every: int = 10,
        fields: Callable[[int], dict[str, Any]] | None = None,
        jitter: float = 0.02,
        **fixed: Any,
    ) -> Build:
        """`count` optimizer steps with a little deterministic jitter; `fields(step)` adds to single ones."""
        for _ in range(count):
            self.step += 1
            self.wait(wait_s or 0.0)
            start = self.t
            length = step_s * (1.0 + jitter * math.sin(12.9898 * self.step))
            self.wait(length)
            more = {**fixed, **(fields(self.step) if fields is not None else {})}
            value = loss(self.step) if callable(loss) else loss
            self.events.append(
                Step(
                    t_s=self.t,
                    step=self.step,
                    start_s=start,
                    data_wait_s=wait_s,
                    **({"loss": value} if value is not None else {}),
                    **more,
                )
            )
            if allocator_every and self.step % allocator_every == 0:
                for index, memory in self.allocator.items():
                    self.events.append(Allocator(t_s=self.t, gpu=index, at="step_end", step=self.step, **memory))
        return self

    def phase(self, name: str, seconds: float, **end: Any) -> Build:
        begin = self.t
        self.events.append(PhaseBegin(t_s=begin, phase=name))
        self.wait(seconds)
        self.events.append(Phase(t_s=self.t, phase=name, start_s=begin, **end))
        return self

    def end(self, outcome: str = "finished", *, train_end: bool = True) -> list[AnyEvent]:
        if train_end:
            self.moment("train_end")
        self.events.append(End(t_s=self.t, outcome=outcome))
        return self.events


def healthy(*, steps: int = 200, step_s: float = 1.0, **header: Any) -> list[AnyEvent]:
    """A run in which nothing is wrong."""
    return Build(**header).gpu().start().steps(steps, step_s, loss=lambda n: 2.5 / n**0.1).end()
