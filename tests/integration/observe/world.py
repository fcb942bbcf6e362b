"""A small made-up fleet: runs that are healthy, starved of data, leaking, hanging, finished and gone, as facts for the engine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from trainbudget.engine.engine import Engine
from trainbudget.events import (
    Allocator,
    AnyEvent,
    Bound,
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
    Process,
    Reading,
    Self,
    Step,
    Tick,
)

GIB = 2.0**30
H100 = ("NVIDIA H100 80GB HBM3", 80 * GIB, 700.0, 989e12)
A100 = ("NVIDIA A100-SXM4-80GB", 80 * GIB, 400.0, 312e12)
L40S = ("NVIDIA L40S", 45 * GIB, 350.0, 362e12)
READ_EVERY_S = 5.0
STARTUP_S = 45.0


@dataclass(kw_only=True)
class RunStory:
    """One rank of one run. Times in seconds since the process started.

    Attributes:
        leak_bytes: growth of memory at rest, a step.
        leak_from: first step of it.
        hangs_at_s: from then on no step comes, readings go on.
        ends_at_s, outcome: a clean end.
        dies_at_s: nothing is heard any more.
    """

    name: str
    ident: str
    rank: int = 0
    world_size: int = 1
    device: tuple[str, float, float, float] = H100
    gpus: int = 1
    unused_gpus: int = 0
    price: float | None = 2.49
    currency: str | None = "USD"
    budget_cost: float | None = None
    budget_step_s: float | None = None
    budget_memory: float | None = None
    steps_total: int = 20_000
    step_s: float = 1.0
    wait_s: float = 0.05
    communication_s: float = 0.0
    busy_share: float = 0.97
    tokens: float = 16_384.0
    useful: float = 0.93
    memory_bytes: float = 49 * GIB
    leak_bytes: float = 0.0
    leak_from: int = 0
    eval_every: int = 600
    eval_s: float = 40.0
    save_every: int = 1200
    save_s: float = 12.0
    flops_per_step: float = 4.0e14
    sm_active: bool = True
    throttle: str | None = None
    hangs_at_s: float = math.inf
    ends_at_s: float = math.inf
    outcome: str = "finished"
    dies_at_s: float = math.inf
    age_s: float = 0.0
    engine: Engine = field(default_factory=Engine)
    _facts: Iterator[AnyEvent] | None = None
    _next: AnyEvent | None = None

    def advance(self, t_s: float) -> None:
        """Feed the engine everything up to `t_s`."""
        if self._facts is None:
            self._facts = self._tell()
            self._next = next(self._facts)
        while self._next is not None and self._next.t_s <= t_s:
            self.engine.feed(self._next)
            self._next = next(self._facts, None)

    @property
    def instance(self) -> str:
        return f"node-{self.ident}:{9837 + self.rank}"

    def _tell(self) -> Iterator[AnyEvent]:
        yield from self._opening()
        t, step, read_s, slow_s = STARTUP_S, 0, STARTUP_S, STARTUP_S
        while t < self.ends_at_s:
            if t >= self.hangs_at_s:
                yield from self._hanging(t)
                return
            wait, work = self._step_times(step)
            start, end = t + wait, t + wait + work
            while read_s <= end:
                yield from self._readings(read_s, step)
                read_s += READ_EVERY_S
            step += 1
            yield self._step(step, start, end, wait, work)
            yield from self._allocators(end, step)
            t = end
            if end - slow_s >= 10.0:
                slow_s = end
                yield self._host(end)
                yield self._own(end)
            for phase, every, length in (("eval", self.eval_every, self.eval_s), ("save", self.save_every, self.save_s)):
                if step % every == 0:
                    yield PhaseBegin(t_s=t, phase=phase)
                    done = t + length
                    while read_s <= done:
                        yield from self._readings(read_s, step, busy=0.6 if phase == "eval" else 0.02)
                        read_s += READ_EVERY_S
                    yield Phase(t_s=done, phase=phase, start_s=t)
                    t = done
        yield Event(t_s=t, event="train_end")
        yield End(t_s=t, outcome=self.outcome)

    def _opening(self) -> Iterator[AnyEvent]:
        name, total, limit_w, peak = self.device
        yield Header(
            run=self.name,
            id=self.ident,
            framework="huggingface",
            backend="mock",
            driver_version="570.86.15",
            sample_period_s=READ_EVERY_S,
            process_started_s=0.0,
            rank=self.rank,
            local_rank=self.rank,
            world_size=self.world_size,
            started_at="2026-11-30T18:00:00Z",
            host=Host(platform="linux", cpu_count=32, memory_limit_bytes=256 * GIB),
            budget=BudgetFact(
                cost=None if self.budget_cost is None else Bound(value=self.budget_cost, source="given"),
                step_time_s=self.budget_step_s,
                memory_peak_bytes=self.budget_memory,
                steps_total=float(self.steps_total),
                flops_per_step=self.flops_per_step,
                run_time_s=self.steps_total * (self.budget_step_s or self.step_s) * 1.1,
                currency=self.currency if self.budget_cost is not None else None,
            ),
            price=Price(per_gpu_hour=self.price, currency=self.currency, source="given", date="2026-11-01")
            if self.price
            else None,
        )
        yield Model(parameters=3.2e9, trainable_parameters=3e7, parameter_dtype="bf16", autocast="bf16", optimizer="adamw")
        for index in range(self.gpus + self.unused_gpus):
            yield Gpu(
                gpu=index,
                uuid=f"GPU-{self.ident}-{self.rank}-{index}",
                name=name,
                memory_total_bytes=total,
                memory_limit_bytes=total - 0.8 * GIB,
                power_limit_w=limit_w,
                power_default_limit_w=limit_w,
                mig=False,
                pcie_gen_max=5,
                pcie_width_max=16,
                compute_capability="9.0",
                peak_flops={"bf16": peak},
                owned=index < self.gpus,
                visible=True,
            )
        yield PhaseBegin(t_s=4.0, phase="load")
        yield Phase(t_s=30.0, phase="load", start_s=4.0)
        yield Event(t_s=31.0, event="train_begin", detail={"batch_size": 4})

    def _step_times(self, step: int) -> tuple[float, float]:
        """A little life: a slow wave, and shorter ones of the batches' lengths; no random numbers."""
        wave = 1.0 + 0.02 * math.sin(step / 211.0) + 0.03 * math.sin(step * 1.7)
        slow = 3.0 if step < 3 else 1.0
        return self.wait_s * (1.0 + 0.3 * math.sin(step / 97.0) + 0.2 * math.sin(step * 2.3)), self.step_s * wave * slow

    def _step(self, step: int, start: float, end: float, wait: float, work: float) -> Step:
        return Step(
            t_s=end,
            step=step,
            start_s=start,
            data_wait_s=wait,
            data_wait_idle_s=wait,
            loader_wait_s=wait,
            forward_s=work * 0.3,
            backward_s=work * 0.55,
            optimizer_s=work * 0.05,
            communication_s=self.communication_s or None,
            gpu_busy_s=work * self.busy_share,
            samples=32.0,
            tokens=self.tokens,
            useful_tokens=self.tokens * self.useful,
            loss=2.0 + 1.5 * math.exp(-step / 800.0) + 0.02 * math.sin(step * 1.3),
            grad_norm=1.0,
        )

    def _memory(self, step: int) -> float:
        grown = self.leak_bytes * max(0, step - self.leak_from)
        return self.memory_bytes + grown + 0.4 * GIB * math.sin(step * 0.9)

    def _readings(self, t_s: float, step: int, busy: float | None = None) -> Iterator[Reading]:
        limit_w = self.device[2]
        share = (self.step_s / (self.step_s + self.wait_s)) * self.busy_share if busy is None else busy
        for index in range(self.gpus + self.unused_gpus):
            used = index < self.gpus
            level = min(1.0, max(0.0, share + 0.02 * math.sin(t_s / 13.0 + index))) if used else 0.0
            memory = self._memory(step) + 0.5 * GIB if used else 4 * 2.0**20
            yield Reading(
                t_s=t_s,
                gpu=index,
                utilization_ratio=round(level, 2),
                memory_utilization_ratio=round(0.5 * level, 2),
                memory_used_bytes=memory,
                memory_reserved_bytes=0.5 * GIB,
                power_w=70.0 + (limit_w - 90.0) * level,
                temperature_c=36.0 + 34.0 * level + 1.5 * math.sin(t_s / 300.0),
                sm_clock_hz=(1.98e9 if not self.throttle else 1.41e9) if level > 0.1 else 0.345e9,
                sm_active_ratio=0.78 * level if self.sm_active else None,
                tensor_active_ratio=0.41 * level if self.sm_active else None,
                energy_j=1e6 + 0.8 * limit_w * t_s,
                pcie_gen=5 if level > 0.1 else 1,
                pcie_width=16,
                throttle=[self.throttle] if self.throttle and level > 0.3 else [],
                ecc_corrected=0.0,
                ecc_uncorrected=0.0,
                processes=[Process(pid=4242, memory_bytes=memory, own=True, alive=True)] if used else [],
                errors=None if self.sm_active else {"sm_active": 3},
            )

    def _allocators(self, t_s: float, step: int) -> Iterator[Allocator]:
        memory = self._memory(step)
        for index in range(self.gpus):
            yield Allocator(
                t_s=t_s,
                gpu=index,
                at="step_end",
                step=step,
                allocated_bytes=memory * 0.62
                if not self.leak_bytes
                else memory * 0.62 + self.leak_bytes * max(0, step - self.leak_from) * 0.38,
                reserved_bytes=memory,
                active_bytes=memory * 0.63,
                inactive_split_bytes=0.8 * GIB,
                peak_allocated_bytes=memory * 0.96,
                peak_reserved_bytes=memory,
                alloc_retries=0.0,
                ooms=0.0,
            )

    def _host(self, t_s: float) -> HostReading:
        return HostReading(
            t_s=t_s,
            rss_bytes=9 * GIB,
            children_rss_bytes=6 * GIB,
            memory_available_bytes=180 * GIB,
            cpu_ratio=0.32 if self.wait_s < 0.2 else 0.21,
            process_cpu_ratio=1.1,
            disk_free_bytes=2e12,
            loader_workers=4,
        )

    def _own(self, t_s: float) -> Self:
        return Self(
            t_s=t_s,
            hook_s=t_s * 2.2e-5,
            sample_s=t_s * 8e-4,
            feed_s=t_s * 1.1e-3,
            cpu_s=t_s * 2e-3,
            dropped=0,
            merged=0,
            errors={"tracker": 1},
        )

    def _hanging(self, t_s: float) -> Iterator[AnyEvent]:
        while True:
            t_s += READ_EVERY_S
            yield from self._readings(t_s, 1000, busy=0.0)
            yield Tick(t_s=t_s)
            yield self._own(t_s)


def fleet(history_s: float) -> list[RunStory]:
    """The fleet as it stands after `history_s`: each run began at some time within it (`age_s` is how old it is now)."""
    h = history_s
    ranks = [
        RunStory(
            name="vit-imagenet",
            ident="c41d",
            rank=rank,
            world_size=4,
            device=A100,
            price=1.79,
            budget_cost=60.0,
            budget_step_s=0.9,
            step_s=0.85 if rank != 3 else 0.93,
            wait_s=0.45 if rank != 3 else 0.37,
            communication_s=0.06,
            steps_total=12_000,
            memory_bytes=38 * GIB,
            budget_memory=40 * GIB,
            tokens=50_000.0,
            useful=1.0,
            flops_per_step=1.06e14,
            age_s=h * 0.95,
        )
        for rank in range(4)
    ]
    return [
        RunStory(
            name="llama-lora",
            ident="7f3a",
            budget_cost=25.0,
            budget_step_s=1.0,
            budget_memory=49.4 * GIB,
            steps_total=int(h * 1.6),
            age_s=h,
            useful=0.91,
        ),
        *ranks,
        RunStory(
            name="gemma-sft",
            ident="91be",
            gpus=2,
            budget_cost=12.0,
            budget_step_s=1.3,
            budget_memory=55 * GIB,
            steps_total=int(h * 1.4),
            step_s=1.35,
            memory_bytes=50 * GIB,
            leak_bytes=27.5 * GIB / (h * 0.42),
            leak_from=int(h * 0.2),
            throttle="sw_power_cap",
            flops_per_step=9.9e14,
            useful=0.68,
            age_s=h * 0.9,
        ),
        RunStory(
            name="bert-mlm",
            ident="02aa",
            device=L40S,
            unused_gpus=1,
            price=0.99,
            memory_bytes=21 * GIB,
            step_s=0.5,
            steps_total=40_000,
            flops_per_step=6.3e13,
            hangs_at_s=h * 0.52,
            age_s=h * 0.6,
            sm_active=False,
        ),
        RunStory(
            name="t5-small",
            ident="77c0",
            device=L40S,
            price=0.99,
            memory_bytes=12 * GIB,
            step_s=0.6,
            steps_total=int(h * 0.5),
            ends_at_s=h * 0.4,
            dies_at_s=h * 0.4 + 120.0,
            flops_per_step=7e13,
            age_s=h * 0.7,
        ),
        RunStory(
            name="mistral-dpo",
            ident="e51c",
            gpus=2,
            memory_bytes=66 * GIB,
            step_s=1.8,
            steps_total=int(h),
            budget_cost=40.0,
            dies_at_s=h * 0.38,
            flops_per_step=1.5e15,
            age_s=h * 0.5,
        ),
    ]
