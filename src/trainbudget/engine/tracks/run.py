"""The run's own course: sessions (one per `train()`), open and closed phases, epochs, the end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from trainbudget.events import End, Event, Phase, PhaseBegin, Progress, Step

#: Phases that are part of getting started: their time is start-up, and nothing in them is judged.
STARTUP_PHASES = frozenset({"startup", "import", "preprocess", "load", "sanity", "trial"})


@dataclass(slots=True)
class OpenPhase:
    phase: str
    start_s: float
    items_total: float | None = None
    items_done: float | None = None


@dataclass(slots=True)
class ClosedPhase:
    phase: str
    start_s: float
    end_s: float
    items_done: float | None = None
    step: int | None = None  # the last optimizer step before it
    inside_startup: bool = False


@dataclass(slots=True)
class Session:
    """One `train()` call, or one attempt of it."""

    begin_s: float
    attempt: int = 1
    batch_size: float | None = None
    first_step_start_s: float | None = None
    first_step_end_s: float | None = None
    steps: int = 0
    end_s: float | None = None
    resumed_at_step: int | None = None
    resume_highest_step: int | None = None


@dataclass(slots=True)
class Epoch:
    begin_s: float
    end_s: float | None = None
    first_step: int | None = None
    first_wait_s: float | None = None
    steps: int = 0


@dataclass(slots=True)
class Moment:
    """An `event` line worth keeping."""

    t_s: float
    event: str
    detail: dict[str, Any] = field(default_factory=dict)


class RunTrack:
    """Sessions, phases, epochs. `training` holds between train_begin and train_end, interrupt or exception."""

    def __init__(self) -> None:
        self.sessions: list[Session] = []
        self.session: Session | None = None
        self.training = False
        self.open: list[OpenPhase] = []
        self.closed: deque[ClosedPhase] = deque(maxlen=512)
        self.phase_seconds: dict[str, float] = {}
        self.phase_counts: dict[str, int] = {}
        self.epoch: Epoch | None = None
        self.epochs: deque[Epoch] = deque(maxlen=256)
        self.epochs_total = 0
        self.moments: deque[Moment] = deque(maxlen=256)
        self.moments_total = 0  # kept or not
        self.exception: Moment | None = None  # the newest
        self.cost_before = 0.0  # money that earlier attempts of this job have cost, as the checkpoint resumed from says
        self.last_progress_s: float | None = None  # a step, a phase, progress or a word of train_begin
        self.left_s: float | None = None  # when training was left last: train_end, interrupt or exception
        self.left_how: str | None = None
        self.end: End | None = None
        self.recompiles: float | None = None
        self.last_step: int | None = None

    @property
    def phase(self) -> str | None:
        """The innermost open phase."""
        return self.open[-1].phase if self.open else None

    def in_phase(self, *phases: str) -> bool:
        return any(p.phase in phases for p in self.open)

    @property
    def started(self) -> bool:
        """Whether the current session has completed a step."""
        return self.session is not None and self.session.steps > 0

    def on_step(self, event: Step) -> None:
        start_s = event.start_s if event.start_s is not None else event.t_s
        if self.session is None or (not self.training and self.left_s is not None and start_s >= self.left_s):
            # Steps without a train_begin (plain loops, cut traces): they open their session themselves.
            self._begin(start_s, {})
        session = self.session
        assert session is not None
        if session.first_step_start_s is None:
            session.first_step_start_s = start_s
            session.first_step_end_s = event.t_s
        session.steps += event.count or 1
        if self.epoch is not None:
            if self.epoch.first_step is None:
                self.epoch.first_step = event.step
                self.epoch.first_wait_s = event.data_wait_s
            self.epoch.steps += event.count or 1
        self.last_step = event.step
        self.last_progress_s = event.t_s

    def on_phase_begin(self, event: PhaseBegin) -> None:
        self.open.append(OpenPhase(event.phase, event.t_s, event.items_total))
        del self.open[:-32]  # a lost end must not grow this
        self.last_progress_s = event.t_s

    def on_progress(self, event: Progress) -> None:
        self.last_progress_s = event.t_s
        if event.recompiles is not None:
            self.recompiles = event.recompiles
        for phase in reversed(self.open):
            if event.phase is None or phase.phase == event.phase:
                phase.items_done = event.items_done if event.items_done is not None else phase.items_done
                phase.items_total = event.items_total if event.items_total is not None else phase.items_total
                return

    def on_phase(self, event: Phase) -> ClosedPhase:
        begun = None
        for place in range(len(self.open) - 1, -1, -1):
            if self.open[place].phase == event.phase:
                begun = self.open[place]
                del self.open[place:]  # what was nested in it and never ended is over too
                break
        start_s = event.start_s if event.start_s is not None else (begun.start_s if begun else event.t_s)
        start_s = min(start_s, event.t_s)
        closed = ClosedPhase(event.phase, start_s, event.t_s, event.items_done, self.last_step, not self.started)
        self.closed.append(closed)
        self.phase_seconds[event.phase] = self.phase_seconds.get(event.phase, 0.0) + event.t_s - start_s
        self.phase_counts[event.phase] = self.phase_counts.get(event.phase, 0) + 1
        if event.recompiles is not None:
            self.recompiles = event.recompiles
        self.last_progress_s = event.t_s
        return closed

    def on_event(self, event: Event) -> None:
        detail = event.detail or {}
        if event.event != "gc":
            moment = Moment(event.t_s, event.event, detail)
            self.moments.append(moment)
            self.moments_total += 1
            if event.event == "exception":
                self.exception = moment
        handler = _EVENT_HANDLERS.get(event.event)
        if handler is not None:
            handler(self, event.t_s, detail)

    def on_end(self, event: End) -> None:
        self.end = event
        self._leave(event.t_s, event.outcome or "end")

    def _begin(self, t_s: float, detail: dict[str, Any]) -> None:
        attempt = detail.get("attempt")
        previous = self.session
        unfinished = previous is not None and previous.end_s is None
        if unfinished and previous is not None:
            previous.end_s = t_s
        if attempt is None:
            attempt = previous.attempt + 1 if unfinished and previous is not None else 1
        batch_size = detail.get("batch_size")
        self.session = Session(t_s, int(attempt), batch_size)
        self.sessions.append(self.session)
        del self.sessions[:-64]
        self.training = True
        self.open = [p for p in self.open if p.phase not in ("eval", "save", "log")]
        self.epoch = None
        self.last_progress_s = t_s

    def _leave(self, t_s: float, how: str) -> None:
        if self.session is not None and self.session.end_s is None:
            self.session.end_s = t_s
        if self.training or self.left_s is None:
            self.left_s, self.left_how = t_s, how
        self.training = False
        if self.epoch is not None and self.epoch.end_s is None:
            self.epoch.end_s = t_s

    def _epoch_begin(self, t_s: float, detail: dict[str, Any]) -> None:
        self.epoch = Epoch(t_s)
        self.epochs.append(self.epoch)
        self.epochs_total += 1
        self.last_progress_s = t_s

    def _epoch_end(self, t_s: float, detail: dict[str, Any]) -> None:
        if self.epoch is not None:
            self.epoch.end_s = t_s
        self.last_progress_s = t_s

    def _resume(self, t_s: float, detail: dict[str, Any]) -> None:
        self.last_progress_s = t_s
        if self.session is not None:
            self.session.resumed_at_step = _int(detail.get("step"))
            self.session.resume_highest_step = _int(detail.get("highest_step"))
        cost = detail.get("cost_before")
        if isinstance(cost, (int, float)) and not isinstance(cost, bool):
            self.cost_before = max(self.cost_before, float(cost))


def _int(value: Any) -> int | None:
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _leaving(how: str) -> Callable[[RunTrack, float, dict[str, Any]], None]:
    return lambda track, t_s, detail: track._leave(t_s, how)


_EVENT_HANDLERS: dict[str, Callable[[RunTrack, float, dict[str, Any]], None]] = {
    "train_begin": RunTrack._begin,
    "train_end": _leaving("train_end"),
    "interrupt": _leaving("interrupt"),
    "exception": _leaving("exception"),
    "epoch_begin": RunTrack._epoch_begin,
    "epoch_end": RunTrack._epoch_end,
    "resume": RunTrack._resume,
}
