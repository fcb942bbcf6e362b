"""The feeder thread: drains hooks and readings, feeds the engine, writes the record and publishes reports, in ONE order."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from trainbudget.clock import Clock
from trainbudget.engine.report import Report
from trainbudget.events import AnyEvent, End, Event, Self, Step, Tick
from trainbudget.gpu.protocol import Observer
from trainbudget.live.counters import Counters
from trainbudget.live.expectations import Expectations
from trainbudget.live.intake import Intake
from trainbudget.live.merge import merge_steps, mergeable
from trainbudget.live.pipeline import Pipeline
from trainbudget.live.probes.host import HostProbe
from trainbudget.live.queue import FactQueue
from trainbudget.live.sampler import Sampler
from trainbudget.sinks.record import TraceWriter

_log = logging.getLogger("trainbudget")

#: A tick at least this often tells the engine that time goes on (contract).
TICK_S = 5.0
#: Steps closer together than this share a line: at most ten lines a second (contract).
MERGE_S = 0.1
SELF_S = 10.0
#: The driver gets this long to tell its devices before the record begins without them.
READY_S = 2.0
#: Facts fed before the interpreter lock is offered to the training thread again: about a millisecond of work.
CHUNK = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the feeder works with; made on its own thread, for disks and ports can keep one waiting."""

    pipeline: Pipeline
    writer: TraceWriter | None = None
    host: HostProbe | None = None
    url: str | None = None


class Feeder:
    """Owns the engine: no other thread touches it. `report` is the last published picture.

    Args:
        assemble: makes the parts, on the feeder's thread.
        preamble: the first facts, from sampler and metrics address, once the devices are known (or have kept us waiting
            for `READY_S`).
        on_report: called with each report.
        keep_s: how long a run is watched after its training has ended.

    Attributes:
        assembled: set once the parts are there (or never will be).
    """

    def __init__(
        self,
        *,
        queue: FactQueue,
        assemble: Callable[[], Parts],
        make_sampler: Callable[[], Sampler],
        preamble: Callable[[Sampler, str | None], list[AnyEvent]],
        workers: Callable[[], int | None],
        clock: Clock,
        zero_s: float,
        interval_s: float,
        counters: Counters,
        on_report: Callable[[Report], None],
        learned: Expectations | None,
        keep_s: float,
        moment: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._queue, self._assemble, self._preamble = queue, assemble, preamble
        self._clock, self._zero_s, self._interval_s = clock, zero_s, interval_s
        self._counters, self._on_report, self._learned, self._keep_s = counters, on_report, learned, keep_s
        self._intake = Intake(
            queue=queue,
            make_sampler=make_sampler,
            workers=workers,
            clock=clock,
            zero_s=zero_s,
            counters=counters,
            moment=moment,
        )
        self._parts: Parts | None = None
        self.assembled = threading.Event()
        self.report: Report | None = None
        self.stop = threading.Event()
        self._last_s = 0.0
        self._publish_s = 0.0
        self._self_s = SELF_S
        self._held: Step | None = None  # an ordinary step that the next one may join
        self._merged = 0
        self._ended = False
        self._kept = False
        self._backend: object = None
        self._observer: Observer | None = None
        self.thread = threading.Thread(target=self._run, name="trainbudget-feeder", daemon=True)

    @property
    def sampler(self) -> Sampler:
        return self._intake.sampler

    @property
    def url(self) -> str | None:
        return self._parts.url if self._parts is not None else None

    def start(self) -> None:
        """Start both threads.

        Raises:
            RuntimeError: the system gives no thread.
        """
        self.thread.start()
        self.sampler.start()

    def forget(self) -> None:
        """In a forked child, which has none of the threads: let go of the parent's file."""
        if self._parts is not None and self._parts.writer is not None:
            self._parts.writer.abandon()

    # --- the thread

    def _run(self) -> None:
        try:
            self._guarded(self._set_up, "start")
            while self._parts is not None and not self._kept and not self._clock.wait(self.stop, self._interval_s):
                self._guarded(self.cycle, "feeder")
                self._guarded(self._look_at_the_end, "feeder")
            if self._parts is not None:
                self._guarded(lambda: self.cycle(last=True), "feeder")
        finally:
            self.assembled.set()
            self._guarded(self._close, "close")
            self._tell()

    def _close(self) -> None:
        self.sampler.stop()
        if self._parts is not None:
            if self._parts.writer is not None:
                self._guarded(self._parts.writer.close, "record")
            self._parts.pipeline.close()

    def _set_up(self) -> None:
        self._tell()
        self._guarded(self._make_parts, "start")
        self.assembled.set()
        if self._parts is None:
            return
        self._intake.host = self._parts.host
        # Devices are known before anything is booked on them, unless the driver keeps us waiting.
        waited_s = 0.0
        while not self.sampler.ready.wait(0.05) and not self.stop.is_set() and waited_s < READY_S:
            waited_s += 0.05
        self._guarded(self._feed_preamble, "start")

    def _make_parts(self) -> None:
        self._parts = self._assemble()

    def _feed_preamble(self) -> None:
        for fact in self._preamble(self.sampler, self.url):
            self._feed(fact)

    def _tell(self) -> None:
        """Write what has been noted on other threads."""
        notes = self._counters.notes
        while notes:
            level, text = notes.popleft()
            with suppress(Exception):  # a handler of the application's
                _log.log(level, "%s", text)

    def _guarded(self, call: Callable[[], object], where: str) -> None:
        try:
            call()
        except Exception as err:  # noqa: BLE001 - the feeder outlives every fault of its parts
            self._counters.fault(where, err)

    def _look_at_the_end(self) -> None:
        """A run that has ended is watched for `keep_s`: that is how a held GPU is seen."""
        assert self._parts is not None
        run = self._parts.pipeline.engine.timeline.run
        self._kept = not run.training and run.left_s is not None and self._now_s() - run.left_s > self._keep_s

    def cycle(self, *, last: bool = False) -> None:
        """One round: everything that is complete by now is fed, in order of time."""
        began = time.perf_counter()
        moment = False
        for place, fact in enumerate(self._intake.gather(last=last)):
            moment = moment or isinstance(fact, (Event, End))
            self._take(fact)
            if place % CHUNK == CHUNK - 1:
                time.sleep(0)
        self._release_held()
        self._feed_own()
        if self._parts is not None and self._parts.writer is not None:
            self._guarded(self._parts.writer.flush, "record")
        self._counters.feed_s += time.perf_counter() - began
        now_s = self._now_s()
        if last or moment or now_s >= self._publish_s:
            self._publish_s = now_s + 1.0
            self._guarded(self._publish, "report")
        self._tell()

    def _publish(self) -> None:
        assert self._parts is not None
        self.report = self._parts.pipeline.publish()
        self._on_report(self.report)

    # --- feeding

    def _feed_own(self) -> None:
        """What the feeder itself has to say: time goes on, what was learned, what monitoring costs."""
        if self._ended:
            return
        now_s = self._now_s()
        if now_s - self._last_s >= TICK_S:
            self._feed(Tick(t_s=now_s))
        self._guarded(self._feed_learned, "learned")
        if now_s >= self._self_s:
            self._self_s = now_s + SELF_S
            self._feed(self._self_fact(now_s))

    def _feed_learned(self) -> None:
        if self._learned is not None and self._parts is not None:
            for fact in self._learned.look(self._parts.pipeline.engine.timeline):
                self._feed(fact)

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
        parts = self._parts
        if self._ended or parts is None:
            return
        if fact.t_s < self._last_s:
            if isinstance(fact, Step) and fact.end_s is None:
                fact.end_s = fact.t_s
            fact.t_s = self._last_s
        self._last_s = fact.t_s
        self._observe(fact)
        # Recorded first: what crashed the engine must be in the record.
        if parts.writer is not None:
            self._call(parts.writer.write, fact, "record")
        self._call(parts.pipeline.feed, fact, "engine")
        self._ended = isinstance(fact, End)

    def _observe(self, fact: AnyEvent) -> None:
        backend = self.sampler.backend
        if backend is not self._backend:  # asking a protocol costs microseconds: once a backend
            self._backend, self._observer = backend, backend if isinstance(backend, Observer) else None
        if self._observer is not None:
            self._call(self._observer.observe, fact, "backend")

    def _call(self, taker: Callable[[AnyEvent], None], fact: AnyEvent, where: str) -> None:
        try:
            taker(fact)
        except Exception as err:  # noqa: BLE001 - the other takers get the fact all the same
            self._counters.fault(where, err)

    def _self_fact(self, now_s: float) -> Self:
        parts = self._parts
        errors = dict(self._counters.errors)
        sinks = parts.pipeline.fan_out.errors if parts is not None else {}
        for reason, count in (*self.sampler.errors.items(), *sinks.items()):
            errors[reason] = errors.get(reason, 0) + count
        left_out = parts.writer.left_out if parts is not None and parts.writer is not None else 0
        return Self(
            t_s=now_s,
            hook_s=self._counters.hook_s,
            sample_s=self.sampler.sample_s,
            feed_s=self._counters.feed_s,
            cpu_s=_thread_cpu_s(),
            dropped=self._queue.dropped + left_out,
            merged=self._queue.merged + self._merged,
            errors=errors or None,
        )

    def _now_s(self) -> float:
        return self._clock.now_s() - self._zero_s


def _thread_cpu_s() -> float | None:
    """CPU seconds of this thread, or None where the platform cannot say."""
    try:
        return time.thread_time()
    except (AttributeError, OSError):
        return None
