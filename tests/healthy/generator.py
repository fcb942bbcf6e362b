"""`hour(seed)`: the facts of one healthy hour, as a live run would have written them."""

from __future__ import annotations

import math
import random
from typing import Any

from healthy.physics import GIB, Scenario, draw
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
    Progress,
    Rank,
    Reading,
    Self,
    Step,
)

HOUR_S = 3600.0
#: More ordinary steps a second than this are merged by the live feeder.
MERGE_ABOVE_PER_S = 10.0
_FIELD_OF = {
    "utilization": ("utilization_ratio", "memory_utilization_ratio"),
    "power": ("power_w",),
    "temperature": ("temperature_c",),
    "clock": ("sm_clock_hz",),
    "pcie": ("pcie_gen", "pcie_width"),
    "processes": ("processes",),
    "energy": ("energy_j",),
}


def hour(seed: int) -> list[AnyEvent]:
    """One run of about an hour in which nothing is wrong."""
    return Hour(draw(seed)).lines()


class Hour:
    """Time goes on in `_pass`; what the GPU does meanwhile is `busy` (0-1 of its usual load)."""

    def __init__(self, s: Scenario) -> None:
        self.s = s
        self.dice = random.Random(s.seed)
        self.t = 0.0
        self.shift = 0.0  # suspends so far
        self.busy = 0.0
        self.step = s.resumed_at or 0
        self.events: list[AnyEvent] = []
        self.loaded = 0.0  # share of the resting memory that is there
        self.heat = 0.0
        self.cached = 0.0
        self.top_length = 0.0
        self.hooks = 0.0
        self.saved = 0
        self.ecc = 0.0
        self.latest_s = s.step_s  # the newest ordinary step
        self._pending: list[tuple[float, float, float]] = []  # merged steps: start, length, wait
        self._next = {"reading": self.dice.uniform(0, s.sample_period_s), "host": 1.0, "self": 10.0, "rank": 15.0, "gc": 40.0}

    def lines(self) -> list[AnyEvent]:
        self._open()
        for session in range(self.s.sessions):
            self._session(session)
            if self.t > HOUR_S:
                break
            if session < self.s.sessions - 1:
                self._pass(self.s.pause_s)
        self.events.append(End(t_s=self.t + self.shift, outcome="finished"))
        return self.events

    # --- the run

    def _open(self) -> None:
        s = self.s
        budget: dict[str, Any] = {}
        steps = HOUR_S / (s.step_s * 1.1)
        # A notebook's cells train anew, each with a total of its own: none holds for the whole run.
        known = "unknown" if s.sessions > 1 else s.knows_total
        total = {"known": (s.resumed_at or 0) + round(steps), "absurd": 2**63 - 1}.get(known)
        if total is not None:
            budget["steps_total"] = total
        if s.plan:
            off = self.dice.uniform(0.94, 1.08)  # how far a good plan is off
            budget["step_time_s"] = Bound(
                value=s.step_s * off, low=s.step_s * off * 0.8, high=s.step_s * off * 1.25, source="plan"
            )
            if s.tells_tokens:
                budget["tokens_per_s"] = 1024.0 * s.micro_batch * s.accumulation / (s.step_s * off)
            if not s.preallocates:
                peak = (s.peak_share + s.cache_share) * s.limit_bytes * self.dice.uniform(1.0, 1.08)
                budget["memory_peak_bytes"] = Bound(value=peak, low=peak * 0.93, high=peak * 1.1, source="plan")
            budget["run_time_s"] = 2.0 * HOUR_S
            if s.price is not None:
                budget["cost"] = s.price * s.gpus * s.world_size * 2.0
        self.events.append(
            Header(
                run=f"healthy-{s.seed}",
                framework=s.framework,
                sample_period_s=s.sample_period_s,
                process_started_s=-self.dice.uniform(0.0, 20.0),
                rank=0,
                local_rank=0,
                world_size=s.world_size,
                host=Host(
                    platform=s.platform,
                    cpu_count=self.dice.choice([8, 16, 64]),
                    memory_limit_bytes=s.host_bytes,
                    interactive=s.interactive,
                ),
                settings=s.settings or None,
                budget=BudgetFact(**budget) if budget else None,
                price=None if s.price is None else Price(per_gpu_hour=s.price, currency="USD", source="given"),
            )
        )
        for index in range(s.gpus + s.foreign_gpus):
            self.events.append(self._gpu(index, owned=index < s.gpus))
        if self.dice.random() < 0.6:
            self.events.append(
                Model(
                    t_s=self.t,
                    parameters=1e9,
                    trainable_parameters=1e9,
                    parameter_dtype="float32",
                    autocast=None if s.half == "no" else s.half,
                    attention="sdpa",
                    optimizer="AdamW",
                )
            )

    def _gpu(self, index: int, *, owned: bool) -> Gpu:
        s, card = self.s, self.s.card
        return Gpu(
            gpu=index,
            uuid=f"GPU-{s.seed:06d}-{index}",
            name=card.name,
            memory_total_bytes=s.limit_bytes + (s.reserved_bytes or 0.4 * GIB),
            memory_limit_bytes=s.limit_bytes,
            power_limit_w=None if s.mig else float(card.limit_w),
            power_default_limit_w=None if s.mig else float(card.limit_w),
            mig=s.mig,
            pcie_gen_max=card.pcie_gen,
            pcie_width_max=16,
            compute_capability=card.capability,
            owned=owned,
        )

    def _session(self, session: int) -> None:
        s, dice = self.s, self.dice
        first = session == 0
        self._load(s.startup_s if first else dice.uniform(1.0, 10.0))
        if not first:
            self.step = 0
        self._event("train_begin", batch_size=s.micro_batch)
        if first and s.resumed_at is not None:
            self._event("resume", step=s.resumed_at, highest_step=s.resumed_at)
            self._pass(s.skip_s)
        if first and dice.random() < 0.2:
            self._phase("sanity", dice.uniform(1.0, 20.0), busy=0.8)
        until = HOUR_S * (session + 1) / s.sessions
        if first and s.compile_s and s.compile_announced:
            self._phase("compile", s.compile_s, busy=0.1)
        done = 0
        if s.epoch_steps:
            self._event("epoch_begin")
        while self.t < until:
            done += 1
            slow = self._slow_factor(done, first)
            self._one_step(done, slow)
            self._between(done)
            if s.suspend_at is not None and self.t > s.suspend_at and self.shift == 0.0:
                self.shift = s.suspend_s
        self._flush()
        if s.epoch_steps:
            self._event("epoch_end")
        if s.save_every:
            self._phase("save", s.save_s, busy=0.0)
        self._event("train_end")
        self._pass(dice.uniform(0.0, 60.0))

    def _slow_factor(self, done: int, first: bool) -> float:
        s = self.s
        if first and done == 1 and s.compile_s and not s.compile_announced:
            return 1.0 + s.compile_s / s.step_s
        if done <= s.slow_first_steps:
            return 1.0 + 3.0 / done
        roll = self.dice.random()
        return 1.0 + (self.dice.uniform(0.3, 1.5) if roll < 0.004 else 0.0)

    def _load(self, seconds: float) -> None:
        if self.s.announced_load:
            self.events.append(PhaseBegin(t_s=self.t + self.shift, phase="load"))
            begin = self.t
            for n in range(1, 5):
                self._pass(seconds / 4)
                self.events.append(Progress(t_s=self.t + self.shift, phase="load", items_done=n, items_total=4))
            self.events.append(Phase(t_s=self.t + self.shift, phase="load", start_s=begin + self.shift))
        else:
            self._pass(seconds)
        self.loaded = 1.0

    def _length(self, done: int) -> float:
        """Tokens of this batch over the usual: how long it takes and how much memory it needs."""
        s = self.s
        if s.lengths == "fixed":
            return 1.0
        spread = s.length_spread
        if s.lengths == "random":
            return min(1.6, max(0.4, math.exp(self.dice.gauss(0.0, spread))))
        # Length-grouping samplers sort within bins of some 50 batches, longest first.
        bin_steps = 50 + self.s.seed % 50
        place = (done % bin_steps) / bin_steps
        return (1.0 + spread) * (1.0 - place) + (1.0 - spread) * place

    def _one_step(self, done: int, slow: float) -> None:
        s, dice = self.s, self.dice
        length = self._length(done)
        seconds = max(0.5 * s.step_s, s.step_s * length * (1.0 + dice.gauss(0.0, s.jitter))) * slow
        wait = s.step_s * s.wait_share * dice.expovariate(1.0)
        if slow == 1.0:
            self.latest_s = seconds
        self.top_length = max(self.top_length, length)
        if s.step_s * MERGE_ABOVE_PER_S < 1.0 and slow == 1.0 and done > 10:
            self._merge(seconds, wait)
            return
        self._flush()
        self._pass(wait, busy=0.5)
        start = self.t
        self._pass(seconds, busy=1.0 if slow < 2.0 else 0.5)
        self.events.append(self._step_line(done, start, seconds, wait, length))
        if s.allocator != "none" and not s.preallocates and (s.allocator == "step" or done % 20 == 0):
            self._allocator(length)

    def _step_line(self, done: int, start: float, seconds: float, wait: float, length: float) -> Step:
        s, dice = self.s, self.dice
        self.step += 1
        more: dict[str, Any] = {"samples": float(s.micro_batch * s.accumulation)}
        if s.accumulation > 1:
            more["micro_steps"] = s.accumulation
        if s.tells_busy:
            more["gpu_busy_s"] = seconds * dice.uniform(0.965, 1.0)
        if s.tells_split:
            more |= {"forward_s": 0.32 * seconds, "backward_s": 0.61 * seconds, "optimizer_s": 0.04 * seconds}
        if s.communication is not None:
            more["communication_s"] = s.communication * seconds
            more["pre_collective_s"] = 0.55 * seconds
        if s.tells_tokens:
            tokens = float(round(1024 * s.micro_batch * s.accumulation * length))
            more["tokens"] = tokens
            more["max_sequence_tokens"] = round(1024 * length)
            if s.tells_useful:
                more["useful_tokens"] = tokens * dice.uniform(0.88, 1.0)
        if self.step % s.log_every == 0:
            more["loss"] = 0.8 + 2.2 / (1.0 + 0.02 * done) ** 0.4 + dice.gauss(0.0, 0.08)
            more["grad_norm"] = abs(dice.gauss(1.0, 0.4))
        if s.half == "fp16" and (done < 6 or dice.random() < 0.0005):
            more |= {"skipped": True, "grad_norm": math.inf}
        return Step(t_s=self.t + self.shift, step=self.step, start_s=start + self.shift, data_wait_s=wait, **more)

    def _merge(self, seconds: float, wait: float) -> None:
        start = self.t + wait
        self._pass(wait + seconds, busy=1.0)
        self._pending.append((start, seconds, wait))
        if self.t - self._pending[0][0] >= 0.5:
            self._flush()

    def _flush(self) -> None:
        if not self._pending:
            return
        held, self._pending = self._pending, []
        count = len(held)
        inside = sum(seconds for _, seconds, _ in held)
        self.step += count
        self.events.append(
            Step(
                t_s=self.t + self.shift,
                step=self.step,
                start_s=held[0][0] + self.shift,
                step_s=inside,
                data_wait_s=sum(wait for _, _, wait in held),
                samples=float(self.s.micro_batch * self.s.accumulation * count),
                gpu_busy_s=0.98 * inside if self.s.tells_busy else None,
                count=count,
            )
        )
        if self.s.allocator != "none" and not self.s.preallocates and self.dice.random() < 0.2:
            self._allocator(1.0)

    def _between(self, done: int) -> None:
        s, dice = self.s, self.dice
        if s.log_phase and done % (10 * s.log_every) == 0 and s.step_s > 0.2:
            self._phase("log", 0.02 * s.step_s, busy=0.0)
        if s.eval_every and done % s.eval_every == 0:
            self._phase("eval", s.eval_s * dice.uniform(0.8, 1.2), busy=0.9)
        if s.save_every and done % s.save_every == 0:
            self._phase("save", s.save_s * dice.uniform(0.7, 1.6), busy=0.02)
            self.saved += 1
        if s.epoch_steps and done % s.epoch_steps == 0:
            self._flush()
            self._event("epoch_end")
            self._event("epoch_begin")
            self._pass(min(s.epoch_gap_s, 0.01 * s.epoch_steps * s.step_s))

    def _phase(self, name: str, seconds: float, *, busy: float) -> None:
        self._flush()
        begin = self.t
        self.events.append(PhaseBegin(t_s=begin + self.shift, phase=name))
        self._pass(seconds, busy=busy)
        self.events.append(Phase(t_s=self.t + self.shift, phase=name, start_s=begin + self.shift))

    def _event(self, name: str, **detail: Any) -> None:
        self._flush()
        self.events.append(Event(t_s=self.t + self.shift, event=name, detail=detail or None))

    # --- what is measured meanwhile

    def _pass(self, seconds: float, busy: float = 0.0) -> None:
        until = self.t + seconds
        self.busy = busy
        while True:
            name = min(self._next, key=self._next.__getitem__)
            at = self._next[name]
            if at > until:
                break
            self.t = max(self.t, at)
            self._measure(name)
        self.t = until

    def _measure(self, name: str) -> None:
        s, dice, at = self.s, self.dice, self.t + self.shift
        if name == "reading":
            self._next[name] += s.sample_period_s * dice.uniform(0.98, 1.02)
            if dice.random() < 0.003:
                return  # a sample that came too late and was dropped
            for index in range(s.gpus):
                self.events.append(self._reading(index, at))
            if s.foreign_gpus and dice.random() < 0.2:
                self.events += [self._foreign(s.gpus + n, at) for n in range(s.foreign_gpus)]
        elif name == "host":
            self._next[name] += max(1.0, 10.0 * s.sample_period_s)
            self.events.append(self._host(at))
        elif name == "self":
            self._next[name] += 10.0
            self.hooks += 10.0 * dice.uniform(0.0002, 0.002)
            self.events.append(Self(t_s=at, hook_s=self.hooks, sample_s=0.01 * self.t, feed_s=0.01 * self.t, cpu_s=0.02 * self.t))
        elif name == "rank":
            self._next[name] += 15.0
            self.events += [self._rank(rank, at) for rank in range(1, s.world_size) if self.step > (s.resumed_at or 0) + 5]
        elif name == "gc":
            self._next[name] += dice.expovariate(1 / 50.0) + 5.0
            if s.step_s > 0.5:
                self.events.append(Event(t_s=at, event="gc", detail={"generation": 2, "duration_s": dice.uniform(0.005, 0.03)}))

    def _reading(self, index: int, at: float) -> Reading:
        s, dice, card = self.s, self.dice, self.s.card
        load = s.utilization * self.busy
        self.heat += (load - self.heat) * min(1.0, s.sample_period_s / 120.0)
        working = load > 0.1
        capped = s.at_cap and load > 0.8
        share = 0.99 if capped else s.power_share * load
        power = card.idle_w + (card.limit_w - card.idle_w) * share * dice.uniform(0.96, 1.0)
        clock = card.clock_mhz * (dice.uniform(0.9, 0.97) if capped else 1.0 if working else 0.2)
        used = self._used_bytes()
        fields: dict[str, Any] = {
            "utilization_ratio": min(1.0, max(0.0, load * dice.uniform(0.95, 1.03))),
            "memory_utilization_ratio": 0.5 * load,
            "memory_used_bytes": used,
            "memory_free_bytes": max(0.0, s.limit_bytes - used),
            "memory_reserved_bytes": s.reserved_bytes,
            "power_w": None if s.mig else power,
            "temperature_c": 34.0 + 40.0 * self.heat + dice.uniform(-1.0, 1.0),
            "sm_clock_hz": clock * 1e6,
            "pcie_gen": card.pcie_gen if working else 1,
            "pcie_width": 16,
            "energy_j": None if s.mig else 300.0 * self.t,
            "ecc_corrected": self.ecc if card.datacentre else None,
            "ecc_uncorrected": 0.0 if card.datacentre else None,
        }
        if s.at_cap:
            fields["throttle"] = ["sw_power_cap"] if capped else [] if working else ["gpu_idle"]
        elif s.seed % 2:
            fields["throttle"] = [] if working else ["gpu_idle"]
        if dice.random() < 0.1:
            fields["processes"] = [Process(pid=4000 + index, memory_bytes=None if s.platform == "wsl" else used, own=True)]
        if dice.random() < 0.0002:
            self.ecc += 1.0
        errors = {}
        for query, code in [*((q, 3) for q in s.unsupported), *((q, 999) for q in s.broken_from_start)]:
            for name in _FIELD_OF.get(query, ()):
                fields[name] = None
            errors[query] = code
        return Reading(t_s=at, gpu=index, errors=errors or None, **fields)

    def _used_bytes(self) -> float:
        s = self.s
        if s.preallocates:
            return 0.76 * s.limit_bytes * self.loaded
        if self.loaded == 0.0:
            return 0.0
        if self.top_length == 0.0:
            return 0.5 * s.rest_share * s.limit_bytes
        return self._reserved_bytes() + 0.45 * GIB * (s.limit_bytes / (80 * GIB)) ** 0.2

    def _peak_bytes(self, length: float) -> float:
        s = self.s
        top = 1.6 if s.lengths == "random" else 1.0 + s.length_spread
        inside = (s.peak_share - s.rest_share) * s.limit_bytes
        return s.rest_share * s.limit_bytes + inside * length / (1.0 if s.lengths == "fixed" else top)

    def _reserved_bytes(self) -> float:
        """The cache follows the longest batch so far, in whole blocks, and settles."""
        need = self._peak_bytes(self.top_length) + self.s.cache_share * self.s.limit_bytes * (1.0 - math.exp(-self.t / 200.0))
        block = 20 * 1024**2
        self.cached = max(self.cached, math.ceil(need / block) * block)
        return min(self.cached, 0.93 * self.s.limit_bytes)

    def _allocator(self, length: float) -> None:
        s = self.s
        rest = s.rest_share * s.limit_bytes
        wobble = self.dice.choice([0.0, 0.0, 512.0, 2 * 1024.0**2])
        for index in range(s.gpus):
            self.events.append(
                Allocator(
                    t_s=self.t + self.shift,
                    gpu=index,
                    at="step_end",
                    step=self.step,
                    allocated_bytes=rest + wobble,
                    active_bytes=rest + wobble,
                    reserved_bytes=self._reserved_bytes(),
                    inactive_split_bytes=0.01 * s.limit_bytes,
                    peak_allocated_bytes=self._peak_bytes(length),
                    peak_reserved_bytes=self._reserved_bytes(),
                    alloc_retries=0.0,
                    ooms=0.0,
                )
            )

    def _foreign(self, index: int, at: float) -> Reading:
        """Somebody else's card: busy or not, it is no business of ours."""
        busy = 1.0 if self.s.seed % 2 else 0.0
        return Reading(
            t_s=at,
            gpu=index,
            utilization_ratio=busy,
            memory_used_bytes=20 * GIB * busy,
            power_w=self.s.card.idle_w,
            temperature_c=40.0,
        )

    def _host(self, at: float) -> HostReading:
        s, dice = self.s, self.dice
        growth = s.worker_growth * s.host_bytes * (1.0 - math.exp(-self.t / 500.0))  # pages that workers touch for the first time
        rss = 4 * GIB + dice.uniform(-0.05, 0.05) * GIB
        return HostReading(
            t_s=at,
            rss_bytes=rss,
            children_rss_bytes=s.workers * 1.2 * GIB + growth,
            memory_available_bytes=s.host_bytes * 0.8 - rss - growth + dice.gauss(0.0, 0.3) * GIB,
            cpu_ratio=dice.uniform(0.05, 0.45),
            process_cpu_ratio=dice.uniform(0.5, 1.1),
            children_cpu_ratio=dice.uniform(0.0, 3.0),
            io_wait_ratio=dice.uniform(0.0, 0.02),
            read_bytes_per_s=dice.uniform(0.0, 2e8),
            shm_free_bytes=30 * GIB,
            disk_free_bytes=(900.0 - 4.0 * min(self.saved, 3)) * GIB + dice.gauss(0.0, 0.05) * GIB,
            loader_workers=s.workers,
        )

    def _rank(self, rank: int, at: float) -> Rank:
        s, dice = self.s, self.dice
        # Ranks whose batches differ much wait for one another in turns, which is waste: here a sampler keeps them alike.
        usual = self.latest_s * dice.uniform(0.98, 1.02)
        return Rank(
            t_s=at,
            rank=rank,
            step=self.step,
            step_time_s=usual,
            data_wait_s=s.step_s * s.wait_share,
            loader_wait_s=s.step_s * s.wait_share,
            pre_collective_s=0.55 * usual if s.communication is not None else None,
            memory_used_bytes=self._used_bytes() * dice.uniform(0.99, 1.01),
            power_w=s.card.limit_w * s.power_share,
            sm_clock_hz=s.card.clock_mhz * 1e6 * (0.935 if s.at_cap else 1.0),
            utilization_ratio=s.utilization,
            gpu_seconds=self.t,
            cost=None if s.price is None else s.price * self.t / 3600.0,
            state="running",
        )
