"""All that is known so far, in bounded memory: what detectors and the ledger look at.

The timeline interprets nothing beyond bookkeeping. A hole without any line (the machine slept, the process was stopped) is
no time at all: `wall_s` takes it out, and every duration here is in wall seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec

from trainbudget.engine.tracks.device import DeviceTrack
from trainbudget.engine.tracks.host import HostTrack, RankTrack
from trainbudget.engine.tracks.learning import LearningTrack
from trainbudget.engine.tracks.pauses import PauseTrack
from trainbudget.engine.tracks.phase_shares import PhaseShares
from trainbudget.engine.tracks.run import ClosedPhase, RunTrack, Session
from trainbudget.engine.tracks.spikes import Spike, SpikeTrack, is_recompile
from trainbudget.engine.tracks.step_shares import StepShareTrack
from trainbudget.engine.tracks.steps import StepRecord, StepTrack
from trainbudget.events import (
    Allocator,
    AnyEvent,
    Bound,
    BudgetFact,
    End,
    Event,
    Gpu,
    Header,
    HostReading,
    Lint,
    Model,
    Phase,
    PhaseBegin,
    Plan,
    Price,
    Progress,
    Rank,
    Reading,
    Self,
    Step,
    Tick,
)

#: A hole of this many sample periods is a suspend (contract).
GAP_PERIODS = 10.0
#: ... but never a shorter one: a thread that holds the interpreter (a large tokenisation, a long compile) silences everybody
#: for that long without any suspend.
GAP_FLOOR_S = 30.0
#: A hole teaches this much at most about how far apart lines are: after a night's sleep they come as before.
RHYTHM_MOST_S = 60.0
#: Hang = no step for this many median steps, at least this long (contract).
HANG_STEPS = 10.0
HANG_FLOOR_S = 120.0
#: A run that compiles may compile again for a new shape, about as long as it did first: twice that is no compilation.
COMPILE_TIMES = 2.0
#: A total of steps beyond this is "unknown" written as a number (sys.maxsize, 2**31 - 1): a step a microsecond for a day.
STEPS_ABSURD = 1e9
#: No process has run for ten years before its training began: the clock was set, or the value is none.
STARTED_MOST_S = 10 * 365 * 86400.0
#: Phases in which nobody expects a step.
QUIET_PHASES = ("eval", "save", "compile", "startup", "import", "preprocess", "load", "sanity", "trial")


class Timeline:
    """Feed facts in order; read attributes. `now_s` is the newest `t_s`, `wall_s()` the seconds without suspends."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.started_s = 0.0  # of the process, <= 0
        self.header = Header()
        self.price: Price | None = None
        self.model: Model | None = None
        self.plan: Plan | None = None
        self.budget: dict[str, Bound] = {}
        self.budget_currency: str | None = None
        self.run = RunTrack()
        self.steps = StepTrack()
        self.step_shares = StepShareTrack(self.steps, self.run)
        self.spikes = SpikeTrack()
        self.pauses = PauseTrack()
        self.learning = LearningTrack()
        self.shares = PhaseShares()
        self.gpus: dict[int, DeviceTrack] = {}
        self.owned: list[DeviceTrack] = []
        self.charged: list[DeviceTrack] = []  # owned, or visible to the job and left unused
        self.host = HostTrack()
        self.ranks: dict[int, RankTrack] = {}
        self.lints: list[Lint] = []
        self.self_: Self | None = None
        self.gaps: list[tuple[float, float]] = []
        self.gaps_s = 0.0
        self.last_step: StepRecord | None = None
        self.last_spike: Spike | None = None  # the last step, where it took far longer than the others, else None
        self.last_reading_s: float | None = None
        self.closed_phase: ClosedPhase | None = None
        self.events = 0
        self._spacing_s = 1.0
        self._handlers: dict[type, Callable[[Any], None]] = {
            Header: self._on_header,
            BudgetFact: self.merge_budget,
            Price: self._on_price,
            Model: self._on_model,
            Plan: self._on_plan,
            Gpu: self._on_gpu,
            Reading: self._on_reading,
            Allocator: self._on_allocator,
            Step: self._on_step,
            PhaseBegin: self.run.on_phase_begin,
            Progress: self.run.on_progress,
            Phase: self._on_phase,
            Event: self._on_event,
            HostReading: self.host.on_host,
            Rank: self._on_rank,
            Lint: self.lints.append,
            Self: self._on_self,
            Tick: self._on_tick,
            End: self.run.on_end,
        }

    # --- time

    def _advance(self, t_s: float, ahead_s: float) -> None:
        """Move on by `ahead_s`, to `t_s`; a hole since the last line is booked as a gap."""
        most_s = 600.0
        if ahead_s > GAP_FLOOR_S and self.events > 1 and ahead_s > GAP_PERIODS * self._line_spacing_s():
            self.gaps.append((self.now_s, t_s))
            self.gaps_s += ahead_s
            del self.gaps[:-256]
            # Where nothing but long steps is told, every pause is such a hole: the second one is the rhythm of the lines.
            most_s = RHYTHM_MOST_S
        self._spacing_s += 0.1 * (min(ahead_s, most_s) - self._spacing_s)
        self.now_s = t_s

    def wall_s(self, t_s: float | None = None) -> float:
        """Seconds of `t_s` (default now) on the axis without gaps; inside a gap, the gap's beginning."""
        t_s = self.now_s if t_s is None else t_s
        if not self.gaps:
            return t_s
        return t_s - sum(min(t_s, end) - start for start, end in self.gaps if start < t_s)

    def since(self, t_s: float) -> float:
        """Wall seconds from `t_s` until now."""
        return self.wall_s() - self.wall_s(t_s)

    def _line_spacing_s(self) -> float:
        return max(self.header.sample_period_s or 1.0, self._spacing_s)

    # --- what is known

    def budget_value(self, name: str) -> float | None:
        bound = self.budget.get(name)
        return None if bound is None else bound.value

    @property
    def steps_total(self) -> float | None:
        """Planned optimizer steps, or None where nobody knows (streaming data, absurd totals)."""
        total = self.budget_value("steps_total")
        return total if total is not None and 0 < total < STEPS_ABSURD else None

    @property
    def steps_left(self) -> float | None:
        total, done = self.steps_total, self.run.last_step
        return None if total is None or done is None else max(0.0, total - done)

    @property
    def world_size(self) -> int:
        return max(1, self.header.world_size or 1)

    @property
    def rank(self) -> int:
        return self.header.rank or 0

    @property
    def compiles(self) -> bool | None:
        """Whether the run uses a compiler; None where nobody says so.

        A setting that is off says nothing: the model may have been compiled by hand.
        """
        if self.run.phase_counts.get("compile") or self.run.recompiles is not None:
            return True
        if (self.header.settings or {}).get("torch_compile") is True:
            return True
        return self.model.compiled if self.model is not None else None

    @property
    def recompiled(self) -> bool:
        """Whether the newest step was long because something was compiled in it."""
        return self.last_spike is not None and is_recompile(self.last_spike, self.compiles, self.spikes.compiled_first)

    @property
    def hang_after_s(self) -> float:
        """Seconds without a step after which a run hangs."""
        usual = max(self.steps.median_s() or 0.0, self._usual_interval_s())
        return max(HANG_STEPS * usual, HANG_FLOOR_S, COMPILE_TIMES * self._compile_s())

    def _compile_s(self) -> float:
        """How long compiling has taken so far, 0 in runs that do not compile."""
        if self.compiles is False or (self.compiles is None and not self.spikes.compiled_first):
            return 0.0
        return max(self.spikes.compile_s or 0.0, self.run.phase_seconds.get("compile", 0.0))

    @property
    def stalled_since_s(self) -> float | None:
        """Since when (t_s of the last progress) a training run has been silent for too long, or None."""
        run = self.run
        if not run.training or not run.started or run.last_progress_s is None:
            return None
        if self.now_s - run.last_progress_s <= HANG_FLOOR_S or run.in_phase(*QUIET_PHASES):
            return None
        return run.last_progress_s if self.since(run.last_progress_s) > self.hang_after_s else None

    def _usual_interval_s(self) -> float:
        records = self.steps.window(steps=20)
        waits = sorted(r.duration_s + (r.wait_s or 0.0) for r in records)
        return waits[len(waits) // 2] if waits else 0.0

    # --- facts

    def feed(self, event: AnyEvent) -> None:
        """Take one fact. Times are clamped to be monotonic; what makes no sense is taken as unknown, never raised."""
        self.events += 1
        t_s = event.t_s
        ahead_s = t_s - self.now_s
        if ahead_s > 0.0:  # time never goes back, and NaN is no time
            self._advance(t_s, ahead_s)
        self._handlers[type(event)](event)

    def merge_budget(self, fact: BudgetFact) -> None:
        for name in BUDGET_NAMES:
            value = getattr(fact, name)
            if value is None:
                continue
            bound = value if isinstance(value, Bound) else Bound(value=float(value), source=fact.source or "given")
            known = self.budget.get(name)
            if known is not None and known.source == "given" and bound.source not in (None, "given"):
                continue  # what somebody allows, no plan and no learning overrides
            if math.isfinite(bound.value) and bound.value >= 0:
                self.budget[name] = bound
        if fact.currency is not None and self.budget_currency is None:
            self.budget_currency = fact.currency

    def _on_header(self, event: Header) -> None:
        if self.events > 1:
            self._fill_in(event)
            return
        self.header = event
        self.started_s = _started_s(event)
        if event.budget is not None:
            self.merge_budget(event.budget)
        if event.price is not None:
            self._on_price(event.price)

    def _fill_in(self, event: Header) -> None:
        """A later header (a framework that was loaded after the start) adds what the first did not know, changes nothing."""
        if event.settings and not self.header.settings:
            framework = event.framework or self.header.framework
            self.header = msgspec.structs.replace(self.header, settings=event.settings, framework=framework)

    def _on_price(self, event: Price) -> None:
        price = event.per_gpu_hour
        if price is None or not math.isfinite(price) or price < 0:
            return
        if self.price is not None and self.price.currency != event.currency:
            return  # money is never mixed
        self.price = event

    def _on_model(self, event: Model) -> None:
        self.model = event

    def _on_plan(self, event: Plan) -> None:
        self.plan = event

    def _on_self(self, event: Self) -> None:
        self.self_ = event

    def _on_tick(self, event: Tick) -> None:
        pass

    def _on_gpu(self, event: Gpu) -> None:
        known = self.gpus.get(event.gpu)
        if known is None:  # the usual case; going over all of them each time is slow for thousands
            track = self.gpus[event.gpu] = DeviceTrack(event)
            self.owned = [*self.owned, track] if track.owned else self.owned
            self.charged = [*self.charged, track] if track.charged else self.charged
            return
        known.on_info(event)
        self.owned = [d for d in self.gpus.values() if d.owned]
        self.charged = [d for d in self.gpus.values() if d.charged]

    def _on_reading(self, event: Reading) -> None:
        device = self.gpus.get(event.gpu)
        if device is None:
            return  # a device nobody introduced: whose it is is unknown
        device.on_reading(event, training=self.run.started)
        device.memory.on_reading(event, self)
        self.last_reading_s = event.t_s

    def _on_allocator(self, event: Allocator) -> None:
        device = self.gpus.get(event.gpu)
        if device is not None:
            device.on_allocator(event)
            device.memory.on_allocator(event, device, self)

    def _on_step(self, event: Step) -> None:
        new_session = self.run.session
        self.run.on_step(event)
        if self.run.session is not new_session:
            self.steps.begin_session()
            self._begin_session()
        end_s = _within(event.end_s, event.t_s)
        start_s = _within(event.start_s, event.t_s) if event.start_s is not None else end_s
        if self.gaps:
            start_s, end_s = self.wall_s(start_s), self.wall_s(end_s)
        previous = self.steps.last_end_s
        since = previous if previous is not None else start_s
        phase_s = 0.0
        closed = self.run.closed
        if closed and closed[-1].end_s >= since:
            for phase in _newest(closed, since):
                phase_s += max(0.0, self.wall_s(phase.end_s) - max(since, self.wall_s(phase.start_s)))
        self.last_step = self.steps.on_step(event, min(start_s, end_s), end_s, phase_s)
        self.last_spike = self.spikes.on_step(self.last_step, self.steps, self.run.recompiles, self.pauses, self.owned)
        if event.loss is not None or event.grad_norm is not None:
            self.learning.on_step(event)

    def _on_phase(self, event: Phase) -> None:
        closed = self.closed_phase = self.run.on_phase(event)
        session = self.run.session
        first_s = session.first_step_start_s if session is not None else None
        self.shares.on_phase(
            closed.phase,
            self.wall_s(closed.start_s),
            self.wall_s(closed.end_s),
            None if first_s is None else self.wall_s(first_s),
        )

    def _on_event(self, event: Event) -> None:
        before = self.run.session
        unfinished = before is not None and before.end_s is None
        self.run.on_event(event)
        if event.event == "gc":
            self.pauses.on_gc(event.t_s, event.detail or {})
        if event.event == "train_begin":
            session = self.run.session
            oom = any(m.event == "oom" and before is not None and m.t_s >= before.begin_s for m in self.run.moments)
            retry = (oom and unfinished) or (session is not None and session.attempt > 1 and unfinished)
            self.steps.begin_session(retry=retry)
            self._begin_session()
        elif event.event == "resume" and self.run.session is not None:
            self.steps.begin_session(resume_highest=self._reached_before(self.run.session))

    def _reached_before(self, session: Session) -> int | None:
        """The highest step that was paid for before a resume: as told, else as this record has seen it."""
        told, resumed_at, seen = session.resume_highest_step, session.resumed_at_step, self.steps.reached
        if told is not None or resumed_at is None or seen is None or self.run.left_how == "train_end":
            return told  # after an end in peace it may be another run
        return seen if seen > resumed_at else None

    def _begin_session(self) -> None:
        self.spikes.begin_session()
        self.learning.begin_session()
        self.shares.begin_session()

    def _on_rank(self, event: Rank) -> None:
        if event.rank not in self.ranks:
            self.ranks[event.rank] = RankTrack(event.rank)
        self.ranks[event.rank].on_rank(event)


#: Names of the numbers a budget holds.
BUDGET_NAMES = tuple(name for name in BudgetFact.__struct_fields__ if name not in ("t_s", "currency", "source"))


def _started_s(header: Header) -> float:
    """When the process began, at most 0; 0 where the header says nothing that can be true."""
    started_s = header.process_started_s
    return started_s if started_s is not None and -STARTED_MOST_S <= started_s <= 0.0 else 0.0


def _within(value: float | None, latest: float) -> float:
    return latest if value is None or not value <= latest else value


def _newest(closed: Any, since: float) -> list[ClosedPhase]:
    out = []
    for phase in reversed(closed):
        if phase.end_s < since:
            break
        out.append(phase)
    return out
