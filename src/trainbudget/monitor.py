"""`Monitor`: what adapters and plain loops talk to. Hooks append facts and return; everything else is on other threads.

No exception of ours reaches the caller: each public hook is `harmless`. Exceptions of the user's own code inside
`step()`, `phase()` and `batches()` pass through untouched.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from trainbudget.clock import Clock, SystemClock
from trainbudget.config import Settings, load
from trainbudget.engine.oom_message import is_device_oom, parse_oom
from trainbudget.engine.report import Report
from trainbudget.events import Allocator, BudgetFact, End, Event, Header, Model, Number, Phase, PhaseBegin, Progress, Step
from trainbudget.live.assembly import RunFacts, allowed, merged_budget, planned
from trainbudget.live.auto_plan import AutoPlan
from trainbudget.live.batch import host_number
from trainbudget.live.console import let_go_of_stuck_handlers
from trainbudget.live.counters import Counters
from trainbudget.live.feeder import Feeder
from trainbudget.live.intake import TimedStep
from trainbudget.live.probes.garbage import GarbageProbe
from trainbudget.live.probes.step_clock import CudaStepClock
from trainbudget.live.queue import FactQueue

_T = TypeVar("_T")
_F = TypeVar("_F", bound=Callable[..., Any])

#: What an `oom` moment carries of the error's own words.
_OOM_NUMBERS = ("gpu", "requested_bytes", "allocated_bytes", "reserved_bytes", "free_bytes", "total_bytes")
#: torch's allocator is read on the training thread after a step, at most this often.
ALLOCATOR_S = 0.5
#: The feeder's last round must be over by then, or the process ends without it (contract: exit within 2 s).
CLOSE_S = 1.0
#: Whoever asks for the record's place or the page's address waits at most this long for them to be known.
ASSEMBLED_S = 2.0


def harmless(method: _F) -> _F:
    """A hook that costs the caller its time and nothing else: faults are counted, the first of each kind is logged."""

    @functools.wraps(method)
    def safe(self: Monitor, *args: Any, **kwargs: Any) -> Any:
        if self._inert:
            return None
        began = time.perf_counter()
        try:
            return method(self, *args, **kwargs)
        except Exception as err:  # noqa: BLE001 - training comes first
            self._counters.fault(method.__name__, err)
            return None
        finally:
            self._counters.hook_s += time.perf_counter() - began

    return safe  # type: ignore[return-value]


class Monitor:
    """A live budget for one training run; see `trainbudget.config.Settings` for every argument.

    Example::

        with trainbudget.Monitor(budget=trainbudget.Budget(cost="40 USD"), price="2.49 USD/h") as monitor:
            for batch in monitor.batches(loader):
                with monitor.step(tokens=batch.numel()):
                    ...

    Raises:
        ConfigError: (a ValueError) an argument is unusable. Nothing else is ever raised.
    """

    # What is known of the open or coming step so far; None = nothing.
    _wait_s: float | None
    _wait_inside_s: float
    _tokens: float | None
    _useful_tokens: float | None
    _samples: float | None
    _longest: float | None
    _loss: float | None
    _grad_norm: float | None
    _micro_steps: int
    _optimizer_s: float | None
    _optimizer_begin_s: float | None

    def __init__(
        self, *, framework: str = "loop", clock: Clock | None = None, steps_total: int | None = None, **arguments: Any
    ) -> None:
        self._set_up(framework, clock, steps_total, arguments)
        if self.settings.strict_port and not self._inert:
            from trainbudget.live.start import require_free_port

            require_free_port(self.settings.listen)

    def _set_up(self, framework: str, clock: Clock | None, steps_total: int | None, arguments: dict[str, Any]) -> None:
        """Everything but the look at the port: a copy's port is its original's, which may well be there still."""
        self._arguments = {"framework": framework, "steps_total": steps_total, **arguments}
        self._clock: Clock = clock or SystemClock()
        warnings: list[str] = []
        self.settings: Settings = load(arguments, warn=warnings.append)
        self._inert = self.settings.disabled
        self._counters = Counters()
        self._queue = FactQueue()
        self._lock = threading.Lock()
        self._zero_s = self._clock.now_s()
        self._feeder: Feeder | None = None
        self._closed = False
        self._training = False
        self._left: str | None = None  # how training was left last: finished, interrupted or failed
        self._old_error: BaseException | None = None
        self._warnings = warnings
        self._garbage = GarbageProbe(self._gc_pause)
        self._cuda_clock = CudaStepClock() if self.settings.step_clock != "wall" else None
        self._steps_total = steps_total
        self.run = RunFacts(framework=framework)
        self.stop_requested: str | None = None
        self._now_s = self._clock.now_s
        self._reset_step()
        self._step = 0
        self._stepped = False  # a step of this session has ended
        self._phases_open = 0
        self._auto_plan = AutoPlan(self.fact) if self.settings.plan == "auto" else None
        self._highest = 0  # step of this process
        self._allocator_s = 0.0
        self._step_open_s: float | None = None
        self._boundary_s = self._zero_s  # the newest moment that cannot belong to a data wait
        self.loader_workers: int | None = None
        self._listeners: list[Callable[[Report], None]] = []

    # --- life

    def __enter__(self) -> Monitor:
        self.start()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            self.exception(error)
        else:
            self.train_end()
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickled or deep-copied monitor is a fresh one, not started: threads and files stay with the original."""
        return (_fresh, (self._arguments,))

    @harmless
    def start(self) -> None:
        """Start watching: two daemon threads, the record, the metrics page. Idempotent; hooks call it themselves."""
        with self._lock:
            if self._feeder is not None or self._closed:
                return
            if _in_loader_worker():
                self._inert = True  # a copy that a data set took along: training is watched where it happens
                return
            from trainbudget.live.start import start_feeder

            try:
                self._feeder = start_feeder(self)
            except Exception:
                self._inert = True  # no thread to be had: nothing is watched, and nothing is tried at every step
                raise
        self._old_error = _last_error()
        reference = weakref.ref(self)
        atexit.register(_close_at_exit, reference)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=functools.partial(_forget_in_child, reference))

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
        if feeder is None:
            self._inert = True  # nobody would ever take what later hooks say
            self._drop_references()
            return
        self._drop_references()
        self._put(End(t_s=self._t_s(), outcome=outcome or self._outcome()))
        feeder.stop.set()
        feeder.thread.join(CLOSE_S)
        self._inert = True

    @property
    def report(self) -> Report | None:
        """The last published picture of the run, or None before the first."""
        feeder = self._feeder
        return feeder.report if feeder is not None else None

    def _outcome(self) -> str:
        if self._left in ("failed", "interrupted"):
            return self._left
        if self.stop_requested is not None:
            return "stopped"
        return "interrupted" if self._training else "finished"

    @property
    def started(self) -> bool:
        return self._feeder is not None and not self._closed

    @property
    def inert(self) -> bool:
        """Whether nothing is watched: switched off, closed, or a forked child's copy."""
        return self._inert

    @property
    def now_s(self) -> Callable[[], float]:
        """The monitor's clock, for adapters that time something themselves."""
        return self._now_s

    @property
    def waited_s(self) -> float | None:
        """Seconds waited for the coming step's data so far; None = nobody has timed any."""
        return self._wait_s

    @property
    def boundary_s(self) -> float:
        """When the framework was last known to do something else than wait for data, on `now_s`."""
        return self._boundary_s

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

    def subscribe(self, listener: Callable[[Report], None]) -> None:
        """Call `listener(report)` on the feeder thread after each report."""
        self._listeners.append(listener)

    # --- sessions and phases

    @harmless
    def train_begin(
        self, *, batch_size: float | None = None, attempt: int | None = None, steps_total: float | None = None
    ) -> None:
        """A training loop begins. Several in one process are one run."""
        self.start()
        self._reset_step()
        self._begin_training(batch_size=batch_size, attempt=attempt, steps_total=steps_total)

    @harmless
    def train_end(self) -> None:
        """The training loop is over; the run goes on until `close` (that is how a held GPU is seen)."""
        if not self._training:
            return
        self._training, self._left = False, "finished"
        self._drop_references()
        self._put(_event(self._t_s(), "train_end"))

    @harmless
    def resume(self, *, step: int, highest_step: int | None = None) -> None:
        if highest_step is None and self._highest > step:
            highest_step = self._highest  # this process has been further: those steps are done and paid for once more
        self._put(_event(self._t_s(), "resume", step=step, highest_step=highest_step))
        self._step = step

    @harmless
    def epoch_begin(self, epoch: float | None = None) -> None:
        self._put(_event(self._t_s(), "epoch_begin", epoch=epoch))

    @harmless
    def epoch_end(self, epoch: float | None = None) -> None:
        self._put(_event(self._t_s(), "epoch_end", epoch=epoch))

    @harmless
    def phase_begin(self, phase: str, *, items_total: float | None = None) -> None:
        self.start()
        self._phases_open += 1
        self._put(PhaseBegin(t_s=self._t_s(), phase=phase, items_total=items_total))

    @harmless
    def progress(self, phase: str, done: float, total: float | None = None) -> None:
        self._put(Progress(t_s=self._t_s(), phase=phase, items_done=done, items_total=total))

    @harmless
    def phase_end(self, phase: str, *, start_s: float | None = None, items_done: float | None = None) -> None:
        """A phase ended now. `start_s` (of `now`) for a phase whose beginning nobody announced."""
        begin = None if start_s is None else start_s - self._zero_s
        self._phases_open = max(0, self._phases_open - 1)
        self._boundary_s = self._now_s()
        self._put(Phase(t_s=self._t_s(), phase=phase, start_s=begin, items_done=items_done))

    @contextmanager
    def phase(self, name: str, *, items_total: float | None = None) -> Iterator[None]:
        """`with monitor.phase("eval"): ...`"""
        began = self._now_s()
        self.phase_begin(name, items_total=items_total)
        try:
            yield
        finally:
            self.phase_end(name, start_s=began)

    # --- steps

    def batches(self, loader: Iterable[_T]) -> Iterator[_T]:
        """Iterate over a loader and time the wait for each batch."""
        self._note_workers(loader)
        iterator = iter(loader)
        while True:
            began = self._now_s()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            self.data_wait(self._now_s() - began)
            yield batch

    @contextmanager
    def step(
        self,
        *,
        sync: bool = True,
        tokens: float | None = None,
        useful_tokens: float | None = None,
        samples: float | None = None,
        max_sequence_tokens: float | None = None,
    ) -> Iterator[Monitor]:
        """One optimizer step; `sync=False` folds a micro-batch into the step that follows."""
        self.step_begin()
        try:
            yield self
        except BaseException:
            self._abandon_step()
            raise
        self.batch_seen(tokens=tokens, useful_tokens=useful_tokens, samples=samples, max_sequence_tokens=max_sequence_tokens)
        if sync:
            self.step_end()
        else:
            self.micro_step()

    @harmless
    def data_wait(self, seconds: float) -> None:
        """A batch was waited for, before the step or inside it (between two micro-batches)."""
        self._wait_s = (self._wait_s or 0.0) + seconds
        if self._step_open_s is not None:
            self._wait_inside_s += seconds

    @harmless
    def batch_seen(
        self,
        *,
        tokens: float | None = None,
        useful_tokens: float | None = None,
        samples: float | None = None,
        max_sequence_tokens: float | None = None,
    ) -> None:
        """What a (micro-)batch of the coming or open step holds. Host numbers only: nothing here may wait for a GPU."""
        tokens, useful_tokens = host_number(tokens), host_number(useful_tokens)
        samples, max_sequence_tokens = host_number(samples), host_number(max_sequence_tokens)
        if tokens is not None:
            self._tokens = (self._tokens or 0.0) + tokens
        if useful_tokens is not None:
            self._useful_tokens = (self._useful_tokens or 0.0) + useful_tokens
        if samples is not None:
            self._samples = (self._samples or 0.0) + samples
        if max_sequence_tokens is not None:
            self._longest = max(self._longest or 0.0, max_sequence_tokens)

    @harmless
    def boundary(self) -> None:
        """The framework did something else until now: what follows, up to the step, is the wait for its data."""
        self._boundary_s = self._now_s()

    @harmless
    def step_begin(self, *, infer_wait: bool = False) -> None:
        """The first micro-batch of an optimizer step begins. Nothing happens when one is open already.

        Args:
            infer_wait: nobody timed the loader, so the wait is the time since the last boundary.
        """
        if self._step_open_s is not None:
            return
        if infer_wait and self._wait_s is None:
            self._wait_s = max(0.0, self._now_s() - self._boundary_s)
        if self._feeder is None:
            self.start()
        if not self._training:
            self._begin_training()  # what was waited for and seen already belongs to this step
        self._step_open_s = self._now_s()
        if self._cuda_clock is not None:
            self._cuda_clock.begin()

    @harmless
    def micro_step(self) -> None:
        """A micro-batch that is not the step's last is done."""
        self._micro_steps += 1

    @harmless
    def optimizer_begin(self) -> None:
        self._optimizer_begin_s = self._now_s()

    @harmless
    def optimizer_end(self) -> None:
        if self._optimizer_begin_s is not None:
            self._optimizer_s = (self._optimizer_s or 0.0) + self._now_s() - self._optimizer_begin_s
            self._optimizer_begin_s = None

    @harmless
    def metrics(self, *, loss: float | None = None, grad_norm: float | None = None) -> None:
        """Loss and gradient norm of the open or coming step, as host numbers."""
        loss, grad_norm = host_number(loss), host_number(grad_norm)
        self._loss = loss if loss is not None else self._loss
        self._grad_norm = grad_norm if grad_norm is not None else self._grad_norm

    @harmless
    def step_end(self, *, step: int | None = None, skipped: bool | None = None) -> None:
        """The optimizer step is complete."""
        now = self._now_s()
        opened = self._step_open_s
        if opened is None:
            return
        zero = self._zero_s
        self._step = step if step is not None else self._step + 1
        self._highest = max(self._highest, self._step)
        fact = Step(
            t_s=now - zero,
            step=self._step,
            # Waits between micro-batches are shown as if they had come first: same sums, one place.
            start_s=min(now, opened + self._wait_inside_s) - zero,
            data_wait_s=self._wait_s,
            loader_wait_s=self._wait_s,
            optimizer_s=self._optimizer_s,
            micro_steps=self._micro_steps + 1 if self._micro_steps else None,
            samples=self._samples,
            tokens=self._tokens,
            useful_tokens=self._useful_tokens,
            max_sequence_tokens=self._longest,
            loss=self._loss,
            grad_norm=self._grad_norm,
            skipped=skipped,
        )
        marks = self._cuda_clock.end() if self._cuda_clock is not None else None
        self._queue.put(fact if marks is None else TimedStep(fact, marks))
        self._reset_step()
        self._stepped = True
        self._step_open_s = None
        self._boundary_s = now
        if now >= self._allocator_s:
            self._allocator_s = now + ALLOCATOR_S
            self._read_allocators("step_end")

    # --- moments and numbers

    @harmless
    def expect(self, **numbers: Number) -> None:
        """Budget numbers learned on the way (steps_total, max_sequence_tokens, ...); see `events.BudgetFact`."""
        fact = merged_budget(**numbers)
        if fact is not None:
            fact.t_s = self._t_s()
            self._put(fact)

    @harmless
    def budget(self, fact: BudgetFact) -> None:
        fact.t_s = self._t_s()
        self._put(fact)

    @harmless
    def fact(self, fact: Any) -> None:
        """Any other fact, stamped now (plan, model, lint)."""
        fact.t_s = self._t_s()
        self._put(fact)

    @harmless
    def plan_from(self, request: Callable[[], Mapping[str, Any]]) -> None:
        """With `plan="auto"`: have the run planned once, in a child process. See `live.auto_plan.AutoPlan.start`."""
        if self._auto_plan is not None:
            self._auto_plan.start(lambda: self._with_gpu(request()))

    def _with_gpu(self, request: Mapping[str, Any]) -> dict[str, Any]:
        gpus = [g for g in self._feeder.sampler.gpus if g.owned and g.name] if self._feeder is not None else []
        if not gpus:
            raise ValueError("no GPU to plan for")
        price = self.settings.price
        money = None if price is None else f"{price.amount} {price.currency or 'USD'}/h"
        gpu = {"name": gpus[0].name, "count": self.run.ranks.world_size, "price_per_hour": money}
        return {**request, "tables": {**request["tables"], "gpu": gpu}}

    @property
    def wants_plan(self) -> bool:
        """Whether an adapter should describe its run to `plan_from`."""
        return self._auto_plan is not None and not self._auto_plan.started

    @harmless
    def model(self, **what: Any) -> None:
        self._put(Model(t_s=self._t_s(), **what))

    @harmless
    def exception(self, error: BaseException) -> None:
        """Training was left by an exception or Ctrl-C. An out-of-memory error becomes an `oom` moment with its numbers."""
        if not _first_time(error, "_trainbudget_seen"):
            return
        self._training = False
        self._drop_references()
        if isinstance(error, KeyboardInterrupt) or (isinstance(error, SystemExit) and not error.code):
            self._left = "interrupted"
            self._put(_event(self._t_s(), "interrupt"))
            return
        self._left = "failed"
        text = str(error)
        if is_device_oom(type(error).__name__, text):
            self.out_of_memory(error)
        self._put(_event(self._t_s(), "exception", type=type(error).__name__, message=text[:500]))

    @harmless
    def out_of_memory(self, error: BaseException) -> None:
        """An out-of-memory error, whether or not training survives it (batch-size finders retry)."""
        if not _first_time(error, "_trainbudget_oom"):
            return
        self._read_allocators("phase")
        message = str(error)
        said = parse_oom(message)
        numbers = {name: getattr(said, name, None) for name in _OOM_NUMBERS}
        ordinal = numbers.get("gpu")
        if ordinal is not None:  # the message counts as the framework does
            numbers["gpu"] = self._visible[ordinal] if ordinal < len(self._visible) else None
        self._put(_event(self._t_s(), "oom", **numbers, message=message[:4000]))

    # --- inside

    def _begin_training(
        self, *, batch_size: float | None = None, attempt: int | None = None, steps_total: float | None = None
    ) -> None:
        self._training, self._left, self._stepped = True, None, False
        self._garbage.start()
        self._step_open_s = None
        self._boundary_s = self._now_s()
        self._put(_event(self._t_s(), "train_begin", batch_size=batch_size, attempt=attempt))
        self.expect(steps_total=planned(steps_total or self._steps_total, "given"))

    def _put(self, fact: Any) -> None:
        self._queue.put(fact)

    def _t_s(self) -> float:
        return self._now_s() - self._zero_s

    def _reset_step(self) -> None:
        self._wait_s = self._tokens = self._useful_tokens = self._samples = self._longest = None
        self._loss = self._grad_norm = self._optimizer_s = self._optimizer_begin_s = None
        self._wait_inside_s = 0.0
        self._micro_steps = 0

    @harmless
    def _abandon_step(self) -> None:
        self._step_open_s = None
        self._reset_step()

    @harmless
    def _note_workers(self, loader: Any) -> None:
        workers = getattr(loader, "num_workers", None)
        if isinstance(workers, int):
            self.loader_workers = workers

    def _read_allocators(self, at: str) -> None:
        if "torch" not in sys.modules or self._feeder is None:
            return
        for fact in self._allocator_facts(at):
            self._put(fact)

    def _allocator_facts(self, at: str) -> list[Allocator]:
        from trainbudget.live.probes.torch_memory import allocator_facts, torch_cuda

        cuda = torch_cuda()
        if cuda is None or self._feeder is None:
            return []
        return allocator_facts(cuda, self._visible, t_s=self._t_s(), at=at, step=self._step)

    @property
    def _visible(self) -> Sequence[int]:
        """Our devices in the framework's order."""
        return self._feeder.sampler.mapping.visible if self._feeder is not None else ()

    def _moment(self) -> str | None:
        """Why memory is worth a look between two steps' ends: inside a phase, or before the first step has ended."""
        if self._phases_open > 0:
            return "phase"
        return "sample" if self._training and not self._stepped else None

    def _drop_references(self) -> None:
        """After the end nothing of the trainer, the model or a batch is held."""
        self._garbage.stop()
        self._step_open_s = None
        if self._auto_plan is not None:
            self._auto_plan.stop()
        if self._cuda_clock is not None:
            self._cuda_clock.drop()

    def _gc_pause(self, generation: int, duration_s: float) -> None:
        self._put(_event(self._t_s(), "gc", generation=generation, duration_s=duration_s))

    def _fault(self, hook: str, err: BaseException) -> None:
        self._counters.fault(hook, err)


def _event(t_s: float, name: str, **detail: Any) -> Event:
    known = {key: value for key, value in detail.items() if value is not None}
    return Event(t_s=t_s, event=name, detail=known or None)


def _first_time(error: BaseException, mark: str) -> bool:
    """Whether this error object is told for the first time: it passes several of our places on its way out."""
    if getattr(error, mark, False):
        return False
    with suppress(AttributeError):  # an exception with slots: at worst it is told twice
        setattr(error, mark, True)
    return True


def _in_loader_worker() -> bool:
    """Whether this process is a worker of a torch `DataLoader`, however it was started."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def _fresh(arguments: Mapping[str, Any]) -> Monitor:
    own = {"framework": arguments["framework"], "steps_total": arguments["steps_total"]}
    monitor = Monitor.__new__(Monitor)
    monitor._set_up(clock=None, arguments={key: value for key, value in arguments.items() if key not in own}, **own)
    return monitor


def _close_at_exit(reference: weakref.ref[Monitor]) -> None:
    """A process that ends without `close`: failed when an exception ended it, else as training was left last."""
    monitor = reference()
    if monitor is None or monitor._feeder is None:
        return
    if not monitor._closed:
        error = _last_error()
        if error is not None and error is not monitor._old_error:
            monitor.exception(error)
        monitor.close()
    if monitor._feeder.thread.is_alive():
        let_go_of_stuck_handlers(logging.getLogger("trainbudget"))


def _last_error() -> BaseException | None:
    """The exception that the interpreter has printed last, as it does with the one that ends a script."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return error if isinstance(error, BaseException) else None


def _forget_in_child(reference: weakref.ref[Monitor]) -> None:
    """A forked child (a loader worker) has none of our threads: its copy does nothing for ever."""
    monitor = reference()
    if monitor is None or monitor._feeder is None:
        return
    monitor._inert = monitor._closed = True
    monitor._garbage.stop()
    feeder, monitor._feeder = monitor._feeder, None
    feeder.forget()
