"""Where the feeder's facts come from: hooks, the sampler, the host. A source that fails loses its own facts only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainbudget.clock import Clock
from trainbudget.events import AnyEvent, Step
from trainbudget.live.counters import Counters
from trainbudget.live.probes.host import HostProbe
from trainbudget.live.probes.step_clock import StepMarks
from trainbudget.live.probes.torch_memory import allocator_facts, torch_cuda, torch_uuids, used_ordinals
from trainbudget.live.queue import FactQueue
from trainbudget.live.sampler import Sampler

#: A step is released when its CUDA events have completed, or after this long without them (contract).
RELEASE_S = 5.0
#: Seconds between two looks at the allocators inside a phase: an evaluation that keeps its outputs grows over many.
ALLOCATORS_S = 2.0


@dataclass(slots=True)
class TimedStep:
    """A step whose GPU times are still being waited for (by query, never by blocking)."""

    fact: Step
    marks: StepMarks

    @property
    def t_s(self) -> float:
        return self.fact.t_s


class Intake:
    """Gathers what is complete by now. `sampler` is the one in use: a stuck one is replaced, at most once."""

    def __init__(
        self,
        *,
        queue: FactQueue,
        make_sampler: Callable[[], Sampler],
        workers: Callable[[], int | None],
        clock: Clock,
        zero_s: float,
        counters: Counters,
        moment: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._moment, self._allocators_s = moment, 0.0
        self.sampler = make_sampler()
        self.host: HostProbe | None = None
        self._queue, self._make_sampler, self._workers = queue, make_sampler, workers
        self._clock, self._zero_s, self._counters = clock, zero_s, counters
        self._replaced = False

    def gather(self, *, last: bool) -> list[AnyEvent]:
        """Everything that is complete, in order of time; hooks keep their order among themselves."""
        facts: list[AnyEvent] = []
        sources: tuple[tuple[str, Callable[[], list[AnyEvent]]], ...] = (
            ("sampler", self._watched_sampler),
            ("hooks", lambda: self._ready_hooks(last=last)),
            ("allocators", self._allocators),
            ("host", self._host_reading),
        )
        for name, source in sources:
            try:
                facts += source()
            except Exception as err:  # noqa: BLE001 - the other sources go on
                self._counters.fault(name, err)
        facts.sort(key=lambda fact: fact.t_s)  # stable
        return facts

    def _ready_hooks(self, *, last: bool) -> list[AnyEvent]:
        """Hook facts up to the first step whose GPU times are still out."""
        out: list[AnyEvent] = []
        now_s = self._now_s()
        while (item := self._queue.peek()) is not None:
            if not isinstance(item, TimedStep):
                out.append(self._queue.pop())
                continue
            done = self._done(item.marks)
            if not done and not last and now_s - item.t_s < RELEASE_S:
                break
            self._queue.pop()
            if done:
                self._add_gpu_times(item)
            out.append(item.fact)
        return out

    def _done(self, marks: StepMarks) -> bool:
        try:
            return marks.done
        except Exception as err:  # noqa: BLE001 - a CUDA error surfaces at any query
            self._counters.fault("step_clock", err)
            return False

    def _add_gpu_times(self, item: TimedStep) -> None:
        try:
            item.fact.gpu_busy_s = item.marks.busy_s()
            item.fact.data_wait_idle_s = item.marks.idle_before_s()
        except Exception as err:  # noqa: BLE001 - as above; the step itself is known
            self._counters.fault("step_clock", err)

    def _watched_sampler(self) -> list[AnyEvent]:
        if self.sampler.stuck and not self._replaced:
            # One more try with a fresh thread; the stuck one is a daemon and stays where it is.
            self._replaced = True
            self.sampler.stop()
            self.sampler = self._make_sampler()
            self.sampler.start()
        facts = self.sampler.facts
        out = [facts.popleft() for _ in range(len(facts))]
        cuda = torch_cuda()
        if cuda is not None:
            self._tell_devices(cuda)
        return out

    def _tell_devices(self, cuda: Any) -> None:
        """torch's own view of the devices refines the sampler's mapping."""
        sampler = self.sampler
        try:
            if sampler.torch_uuids is None:
                sampler.torch_uuids = torch_uuids(cuda)
            # Once ours, always ours: memory that is given back for a moment makes no other owner.
            sampler.torch_used = tuple(sorted({*sampler.torch_used, *used_ordinals(cuda)}))
        except Exception as err:  # noqa: BLE001 - without it the mapping stands as it is
            sampler.torch_uuids = sampler.torch_uuids or ()
            self._counters.fault("torch", err)

    def _allocators(self) -> list[AnyEvent]:
        """Memory inside phases and before the first step's end, where no step's end tells it. Takes torch's own lock only."""
        now_s, at = self._now_s(), self._moment()
        if at is None or now_s < self._allocators_s:
            return []
        self._allocators_s = now_s + ALLOCATORS_S
        cuda = torch_cuda()
        if cuda is None:
            return []
        return [*allocator_facts(cuda, self.sampler.mapping.visible, t_s=now_s, at=at, step=None)]

    def _host_reading(self) -> list[AnyEvent]:
        if self.host is None:
            return []
        reading = self.host.read(self._now_s(), workers=self._workers())
        return [] if reading is None else [reading]

    def _now_s(self) -> float:
        return self._clock.now_s() - self._zero_s
