"""The feeder thread: drains hooks and readings, feeds the engine, writes the record and publishes reports, in ONE order."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from trainbudget.clock import Clock
from trainbudget.engine.report import Report
from trainbudget.events import AnyEvent, End, Event, Self, Step, Tick
from trainbudget.gpu.protocol import Observer
from trainbudget.live.learned import LearnedBudget
from trainbudget.live.merge import merge_steps, mergeable
from trainbudget.live.pipeline import Pipeline
from trainbudget.live.probes.host import HostProbe
from trainbudget.live.probes.step_clock import StepMarks
from trainbudget.live.probes.torch_memory import torch_cuda, torch_uuids, used_ordinals
from trainbudget.live.queue import FactQueue
from trainbudget.live.sampler import Sampler
from trainbudget.sinks.record import TraceWriter

_log = logging.getLogger("trainbudget")

#: A tick at least this often tells the engine that time goes on (contract).
TICK_S = 5.0
#: A step is released when its CUDA events have completed, or after this long without them (contract).
RELEASE_S = 5.0
#: Steps closer together than this share a line: at most ten lines a second (contract).
MERGE_S = 0.1
SELF_S = 10.0
#: The driver gets this long to tell its devices before the record begins without them.
READY_S = 2.0
#: Facts fed before the interpreter lock is offered to the training thread again: about a millisecond of work.
CHUNK = 64


@dataclass(slots=True)
class TimedStep:
    """A step whose GPU times are still being waited for (by query, never by blocking)."""

    fact: Step
    marks: StepMarks

    @property
    def t_s(self) -> float:
        return self.fact.t_s


@dataclass(slots=True)
class Counters:
    """What the monitor costs and what went wrong; written by several threads, each its own fields."""

    hook_s: float = 0.0
    feed_s: float = 0.0
    errors: dict[str, int] = field(default_factory=dict)

    def error(self, reason: str) -> bool:
        """Count one; true the first time."""
        count = self.errors[reason] = self.errors.get(reason, 0) + 1
        return count == 1


class Feeder:
    """Owns the engine: no other thread touches it. `report` is the last published picture."""

    def __init__(
        self,
        *,
        queue: FactQueue,
        pipeline: Pipeline,
        writer: TraceWriter | None,
        make_sampler: Callable[[], Sampler],
        host: HostProbe | None,
        workers: Callable[[], int | None],
        clock: Clock,
        zero_s: float,
        interval_s: float,
        counters: Counters,
        on_report: Callable[[Report], None],
        learned: LearnedBudget | None,
        keep_s: float,
        preamble: Callable[[Sampler], list[AnyEvent]],
        url: str | None = None,
    ) -> None:
        self.url = url
        self._queue, self._pipeline, self._writer, self._host = queue, pipeline, writer, host
        self._make_sampler, self._workers = make_sampler, workers
        self._clock, self._zero_s, self._interval_s = clock, zero_s, interval_s
        self._counters, self._on_report, self._learned, self._keep_s = counters, on_report, learned, keep_s
        self._preamble = preamble
        self.sampler = make_sampler()
        self._replaced = False
        self._retired: Sampler | None = None
        self.report: Report | None = None
        self.stop = threading.Event()
        self._last_s = 0.0
        self._publish_s = 0.0
        self._self_s = SELF_S
        self._held: Step | None = None  # an ordinary step that the next one may join
        self._merged = 0
        self._ended = False
        self.thread = threading.Thread(target=self._run, name="trainbudget-feeder", daemon=True)

    def start(self) -> None:
        self.sampler.start()
        self.thread.start()

    # --- the thread

    def _run(self) -> None:
        try:
            # Devices are known before anything is booked on them, unless the driver keeps us waiting.
            self.sampler.ready.wait(timeout=READY_S)
            for fact in self._preamble(self.sampler):
                self._feed(fact)
            while not self._clock.wait(self.stop, self._interval_s):
                self._guarded_cycle()
                if self._kept_long_enough():
                    break
            self._guarded_cycle(last=True)
        finally:
            self.sampler.stop()
            self._guarded(self._close_writer, "record")
            self._guarded(self._pipeline.close, "sinks")

    def _guarded_cycle(self, *, last: bool = False) -> None:
        self._guarded(lambda: self.cycle(last=last), "feeder")

    def _guarded(self, call: Callable[[], None], reason: str) -> None:
        try:
            call()
        except Exception as err:  # noqa: BLE001 - the feeder outlives every fault of its parts
            if self._counters.error(reason):
                _log.warning("monitoring fault in %s (%s: %s); training is not affected", reason, type(err).__name__, err)

    def _kept_long_enough(self) -> bool:
        run = self._pipeline.engine.timeline.run
        return not run.training and run.left_s is not None and self._now_s() - run.left_s > self._keep_s

    def cycle(self, *, last: bool = False) -> None:
        """One round: everything that is complete by now is fed, in order of time."""
        began = time.perf_counter()
        self._watch_sampler()
        facts = self._ready_hooks(last=last)
        facts += self._drain_sampler()
        facts += self._probe_host()
        facts.sort(key=lambda fact: fact.t_s)  # stable: hooks keep their order
        moment = False
        for place, fact in enumerate(facts):
            moment = moment or isinstance(fact, (Event, End))
            self._take(fact)
            if place % CHUNK == CHUNK - 1:
                time.sleep(0)
        self._release_held()
        now_s = self._now_s()
        if now_s - self._last_s >= TICK_S and not self._ended:
            self._feed(Tick(t_s=now_s))
        if self._learned is not None:
            learned = self._learned.look(self._pipeline.engine.timeline)
            if learned is not None:
                self._feed(learned)
        if now_s >= self._self_s and not self._ended:
            self._self_s = now_s + SELF_S
            self._feed(self._self_fact(now_s))
        if self._writer is not None:
            self._guarded(self._writer.flush, "record")
        self._counters.feed_s += time.perf_counter() - began
        if last or moment or now_s >= self._publish_s:
            self._publish_s = now_s + 1.0
            self.report = self._pipeline.publish()
            self._on_report(self.report)

    # --- sources

    def _ready_hooks(self, *, last: bool) -> list[AnyEvent]:
        """Hook facts up to the first step whose GPU times are still out."""
        out: list[AnyEvent] = []
        now_s = self._now_s()
        while (item := self._queue.peek()) is not None:
            if isinstance(item, TimedStep):
                if not last and now_s - item.t_s < RELEASE_S and not item.marks.done:
                    break
                self._queue.pop()
                out.append(self._with_gpu_times(item))
                continue
            out.append(self._queue.pop())
        return out

    def _with_gpu_times(self, item: TimedStep) -> Step:
        step = item.fact
        if item.marks.done:
            step.gpu_busy_s = item.marks.busy_s()
            step.data_wait_idle_s = item.marks.idle_before_s()
        return step

    def _drain_sampler(self) -> list[AnyEvent]:
        facts = self.sampler.facts
        out = []
        for _ in range(len(facts)):
            out.append(facts.popleft())
        return out

    def _probe_host(self) -> list[AnyEvent]:
        if self._host is None or self._ended:
            return []
        reading = self._host.read(self._now_s(), workers=self._workers())
        return [] if reading is None else [reading]

    def _watch_sampler(self) -> None:
        if self.sampler.stuck and not self._replaced:
            # One more try with a fresh thread; the stuck one is a daemon and stays where it is.
            self._replaced = True
            self._retired, self.sampler = self.sampler, self._make_sampler()
            self._retired.stop()
            self.sampler.start()
        cuda = torch_cuda()
        if cuda is None:
            return
        if self.sampler.torch_uuids is None:
            self.sampler.torch_uuids = torch_uuids(cuda)
        # Once ours, always ours: memory that is given back for a moment makes no other owner.
        self.sampler.torch_used = tuple(sorted({*self.sampler.torch_used, *used_ordinals(cuda)}))

    # --- feeding

    def _take(self, fact: AnyEvent) -> None:
        """Feed a fact, or hold an ordinary step back for a moment so that the next one may join its line."""
        if not isinstance(fact, Step):
            self._release_held()
            self._feed(fact)
            return
        held = self._held
        if held is not None and mergeable(held, fact) and fact.t_s - (held.start_s or held.t_s) < MERGE_S:
            self._held = merge_steps(held, fact)
            self._merged += 1
            return
        self._release_held()
        self._held = fact

    def _release_held(self) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            self._feed(held)

    def _feed(self, fact: AnyEvent) -> None:
        if self._ended:
            return
        if fact.t_s < self._last_s:
            if isinstance(fact, Step) and fact.end_s is None:
                fact.end_s = fact.t_s
            fact.t_s = self._last_s
        self._last_s = fact.t_s
        self._observe(fact)
        # Recorded first: what crashed the engine must be in the record.
        if self._writer is not None:
            self._guarded(lambda: self._writer.write(fact), "record")  # type: ignore[union-attr]
        self._guarded(lambda: self._pipeline.feed(fact), "engine")
        self._ended = isinstance(fact, End)

    def _observe(self, fact: AnyEvent) -> None:
        backend = self.sampler.backend
        if isinstance(backend, Observer):
            self._guarded(lambda: backend.observe(fact), "backend")

    def _self_fact(self, now_s: float) -> Self:
        errors = dict(self._counters.errors)
        for reason, count in (*self.sampler.errors.items(), *self._pipeline.fan_out.errors.items()):
            errors[reason] = errors.get(reason, 0) + count
        return Self(
            t_s=now_s,
            hook_s=self._counters.hook_s,
            sample_s=self.sampler.sample_s,
            feed_s=self._counters.feed_s,
            cpu_s=_thread_cpu_s(),
            dropped=self._queue.dropped + (self._writer.left_out if self._writer is not None else 0),
            merged=self._queue.merged + self._merged,
            errors=errors or None,
        )

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _now_s(self) -> float:
        return self._clock.now_s() - self._zero_s


def _thread_cpu_s() -> float | None:
    """CPU seconds of this thread, or None where the platform cannot say."""
    try:
        return time.thread_time()
    except (AttributeError, OSError):
        return None
