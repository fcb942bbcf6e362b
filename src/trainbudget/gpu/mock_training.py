"""What a mock knows of the training it pretends to serve: its own facts, folded into load and progress."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass

from trainbudget.events import AnyEvent, BudgetFact, Event, Header, Phase, PhaseBegin, Step, value_of

#: How busy a card is in a phase that is not a step. Reading, saving and compiling happen on the host.
_PHASE_UTILIZATION = {"eval": 0.82, "sanity": 0.75, "trial": 0.9}
_BUSY_UTILIZATION = 0.96
_STEPS_REMEMBERED = 16
#: No step for three usual ones, and for two seconds at least: the training stands.
_STANDING_STEPS = 3.0
_STANDING_S = 2.0
#: A story must be told in a demo of a minute, and not drag on for days in a long run.
_STORY_STEPS = 300
_STORY_STEPS_RANGE = (40, 2000)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepNote:
    """A finished step, as far as memory stories need it."""

    t_s: float
    step: int
    number: int  # steps seen so far, this one included; a restart does not set it back
    sequence_ratio: float | None  # its longest sequence over the usual one


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """The training at one moment."""

    utilization_ratio: float
    training: bool
    standing: bool  # in training, but no step comes any more


class TrainingView:
    """Follows the facts of a run. Not thread-safe: its owner locks."""

    def __init__(self, *, story_steps: int | None) -> None:
        self.steps_seen = 0
        self.training = False
        self._story_steps = story_steps
        self._steps_total: float | None = None
        self._phases: list[str] = []
        self._recent: deque[tuple[float, float]] = deque(maxlen=_STEPS_REMEMBERED)  # wait, work
        self._last_end_s: float | None = None
        self._lengths: list[float] = []

    def observe(self, event: AnyEvent) -> StepNote | None:
        """Take note of a fact; a step gives its note."""
        if isinstance(event, Step):
            return self._step(event)
        if isinstance(event, PhaseBegin):
            self._phases.append(event.phase)
        elif isinstance(event, Phase):
            self._leave(event.phase)
        elif isinstance(event, Event):
            self._moment(event)
        elif isinstance(event, Header) and event.budget is not None:
            self._learn_total(event.budget)
        elif isinstance(event, BudgetFact):
            self._learn_total(event)
        return None

    @property
    def progress(self) -> float:
        """How far the story is: 0 at the first step, 1 at the end of the run or after 300 steps, and beyond."""
        low, high = _STORY_STEPS_RANGE
        steps = self._story_steps or min(max(self._steps_total or _STORY_STEPS, low), high)
        return self.steps_seen / steps

    def activity(self, now_s: float) -> Activity:
        """Load and state in the second before `now_s`."""
        if self._phases:
            return Activity(
                utilization_ratio=_PHASE_UTILIZATION.get(self._phases[-1], 0.0), training=self.training, standing=False
            )
        if not self.training or self._last_end_s is None or not self._recent:
            return Activity(utilization_ratio=0.0, training=self.training, standing=False)
        usual_s = statistics.median(wait_s + work_s for wait_s, work_s in self._recent)
        if now_s - self._last_end_s > max(_STANDING_STEPS * usual_s, _STANDING_S):
            return Activity(utilization_ratio=0.0, training=True, standing=True)
        waited_s = sum(wait_s for wait_s, _ in self._recent)
        worked_s = sum(work_s for _, work_s in self._recent)
        share = worked_s / (waited_s + worked_s) if waited_s + worked_s > 0 else 1.0
        return Activity(utilization_ratio=_BUSY_UTILIZATION * share, training=True, standing=False)

    def _step(self, step: Step) -> StepNote:
        end_s = step.t_s if step.end_s is None else step.end_s
        times = step.count or 1
        start_s = end_s if step.start_s is None else step.start_s
        if step.step_s is not None:
            work_s = step.step_s
        else:
            work_s = max(0.0, end_s - start_s - (step.data_wait_s or 0.0 if times > 1 else 0.0))
        self._recent.append(((step.data_wait_s or 0.0) / times, work_s / times))
        self._last_end_s = end_s
        self.training = True
        self.steps_seen += times
        return StepNote(
            t_s=step.t_s, step=step.step, number=self.steps_seen, sequence_ratio=self._ratio(step.max_sequence_tokens)
        )

    def _ratio(self, tokens: float | None) -> float | None:
        if not tokens:
            return None
        if len(self._lengths) < _STEPS_REMEMBERED:
            self._lengths.append(tokens)
        return tokens / statistics.median(self._lengths)

    def _leave(self, phase: str) -> None:
        if phase in self._phases:
            del self._phases[len(self._phases) - 1 - self._phases[::-1].index(phase) :]

    def _moment(self, event: Event) -> None:
        if event.event == "train_begin":
            self.training = True
            self._recent.clear()
            self._last_end_s = None
        elif event.event in ("train_end", "interrupt", "exception"):
            self.training = False
            self._phases.clear()

    def _learn_total(self, budget: BudgetFact) -> None:
        total = value_of(budget.steps_total)
        if total is not None and not self.steps_seen:  # later on it would make the story jump
            self._steps_total = total
