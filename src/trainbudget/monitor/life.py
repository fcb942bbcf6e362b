"""A monitor's life: how it is set up, started and closed, what the run is called, and where its record and page are."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainbudget.clock import Clock, SystemClock
from trainbudget.config import Settings, load
from trainbudget.engine.report import Report
from trainbudget.events import AnyEvent, End, Header
from trainbudget.live.assembly import RunFacts, allowed, finding_names
from trainbudget.live.counters import Counters
from trainbudget.live.feeder import Feeder
from trainbudget.live.harmless import harmless
from trainbudget.live.probes.garbage import GarbageProbe
from trainbudget.live.process_life import Watched, follow, in_worker, tell_of_worker
from trainbudget.live.queue import FactQueue
from trainbudget.live.told_errors import exception_moment, first_time, is_interrupt, is_out_of_memory, moment, oom_moment
from trainbudget.live.training import Training

#: The feeder's last round must be over by then, or the process ends without it (contract: exit within 2 s).
CLOSE_S = 1.0
#: Whoever asks for the record's place or the page's address waits at most this long for them to be known.
ASSEMBLED_S = 2.0


class Life:
    """From `start` to `close`; hooks append facts to a queue that the feeder's thread drains.

    Attributes:
        run: what is known of the run; adapters fill it in.
        stop_requested: why the run is to be stopped, once it is.
        loader_workers: processes that prepare batches; None = unknown.
    """

    def _set_up(self, framework: str, clock: Clock | None, steps_total: int | None, arguments: dict[str, Any]) -> None:
        """Everything but the look at the port: a copy's port is its original's, which may well be there still."""
        self._arguments = {"framework": framework, "steps_total": steps_total, **arguments}
        self._warnings: list[str] = []
        self.settings: Settings = load(arguments, warn=self._warnings.append, findings=finding_names())
        self._inert = self.settings.disabled
        self._closed = False
        self._origin: Watched | None = None  # where the monitor runs that this one is a copy of
        self._lock = threading.Lock()
        self._clock: Clock = clock or SystemClock()
        self._now_s = self._clock.now_s
        self._zero_s = self._now_s()
        self._counters = Counters()
        self._queue = FactQueue()
        self._feeder: Feeder | None = None
        self._listeners: list[Callable[[Report], None]] = []
        self._training = Training()
        self._garbage = GarbageProbe(self._gc_pause)
        self.run = RunFacts(framework=framework)
        self.stop_requested: str | None = None
        self.loader_workers: int | None = None

    @harmless
    def start(self) -> None:
        """Start watching: two daemon threads, the record, the metrics page. Idempotent; hooks call it themselves."""
        with self._lock:
            if self._feeder is not None or self._closed:
                return
            if in_worker(self._origin):
                self._inert = True  # a copy that a data set took along: training is watched where it happens
                if self._origin is not None and self.settings.log:
                    tell_of_worker(self._origin.pid)
                return
            from trainbudget.live.start import start_feeder

            try:
                self._feeder = start_feeder(self)
            except Exception:
                self._inert = True  # no thread to be had: nothing is watched, and nothing is tried at every step
                raise
        follow(self)

    @harmless
    def identify(
        self, *, name: str | None = None, framework: str | None = None, settings: Mapping[str, Any] | None = None
    ) -> None:
        """What an adapter knows of the run. After the start it is told by a second header, which fills in the first."""
        run = self.run
        if name is not None and run.name == "run":
            run.name = name
        run.framework = framework or run.framework
        if settings is not None:
            run.settings = dict(settings)
        if self._feeder is not None:
            self._put(Header(t_s=self._t_s(), framework=run.framework, settings=allowed(run.settings)))

    @harmless
    def close(self, outcome: str | None = None) -> None:
        """End the run: last facts are fed, the record and the port are closed. Idempotent; takes at most 1 s."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            feeder = self._feeder
        self._drop_references()
        if feeder is not None:
            how = outcome or self._training.outcome(stopped=self.stop_requested is not None)
            self._put(End(t_s=self._t_s(), outcome=how))
            feeder.stop.set()
            feeder.thread.join(CLOSE_S)
        self._inert = True  # nobody would ever take what later hooks say

    @harmless
    def exception(self, error: BaseException) -> None:
        """Training was left by an exception or Ctrl-C. An out-of-memory error becomes an `oom` moment with its numbers."""
        if not first_time(error, "seen"):
            return
        interrupt = is_interrupt(error)
        self._training.leave("interrupted" if interrupt else "failed")
        self._drop_references()
        if interrupt:
            self._tell("interrupt")
            return
        if is_out_of_memory(error):
            self.out_of_memory(error)
        self._put(exception_moment(self._t_s(), error))

    @harmless
    def out_of_memory(self, error: BaseException) -> None:
        """An out-of-memory error, whether or not training survives it (batch-size finders retry)."""
        if first_time(error, "oom"):
            self._read_allocators("phase")
            self._put(oom_moment(self._t_s(), error, self._visible))

    @harmless
    def give_way(self) -> None:
        """Another monitor of this process watches from now on. Without a step of our own nothing is left of us."""
        feeder = self._feeder
        if feeder is None or self._training.highest or self._training.left is not None:
            self.close()
            return
        from trainbudget.live.start import leave_no_trace

        with self._lock:
            self._closed = True
        self._drop_references()
        feeder.stop.set()
        feeder.thread.join(CLOSE_S)
        self._inert = True
        leave_no_trace(self.run)

    @property
    def _runs_in(self) -> Watched | None:
        """What copies of this monitor are told."""
        return Watched(pid=os.getpid(), ranks=self.run.ranks) if self.started else self._origin

    def _forget(self) -> None:
        """In a forked child, which has none of our threads."""
        feeder, self._feeder = self._feeder, None
        if feeder is not None:
            self._inert = self._closed = True
            self._garbage.stop()
            feeder.forget()

    def subscribe(self, listener: Callable[[Report], None]) -> None:
        """Call `listener(report)` on the feeder thread after each report."""
        self._listeners.append(listener)

    @property
    def report(self) -> Report | None:
        """The last published picture of the run, or None before the first."""
        feeder = self._feeder
        return feeder.report if feeder is not None else None

    @property
    def started(self) -> bool:
        """Whether the run is being watched now."""
        return self._feeder is not None and not self._closed

    @property
    def inert(self) -> bool:
        """Whether nothing is watched: switched off, closed, or a forked child's copy."""
        return self._inert

    @property
    def url(self) -> str | None:
        """Where the metrics page listens, or None."""
        return self._feeder.url if self._assembled() and self._feeder is not None else None

    @property
    def directory(self) -> Path | None:
        """The run's record, or None."""
        self._assembled()
        return self.run.directory

    def _assembled(self) -> bool:
        feeder = self._feeder
        return feeder is not None and feeder.assembled.wait(ASSEMBLED_S)

    # --- telling the feeder

    def _t_s(self) -> float:
        return self._now_s() - self._zero_s

    def _put(self, fact: AnyEvent) -> None:
        self._queue.put(fact)

    def _tell(self, name: str, **detail: Any) -> None:
        self._put(moment(self._t_s(), name, **detail))

    def _gc_pause(self, generation: int, duration_s: float) -> None:
        self._tell("gc", generation=generation, duration_s=duration_s)

    def _fault(self, hook: str, err: BaseException) -> None:
        self._counters.fault(hook, err)

    def _drop_references(self) -> None:
        """After the end nothing of the trainer, the model or a batch is held."""
        self._garbage.stop()

    def _read_allocators(self, at: str) -> None:
        if "torch" not in sys.modules or self._feeder is None:
            return
        from trainbudget.live.probes.torch_memory import allocator_facts, torch_cuda

        cuda = torch_cuda()
        if cuda is not None:
            for fact in allocator_facts(cuda, self._visible, t_s=self._t_s(), at=at, step=self._training.step):
                self._put(fact)

    @property
    def _visible(self) -> Sequence[int]:
        """Our devices in the framework's order."""
        return self._feeder.sampler.mapping.visible if self._feeder is not None else ()
