"""Hooks of training loops and phases: what begins, ends, goes on after an error, or does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from trainbudget.clock import Clock
from trainbudget.events import Number, Phase, PhaseBegin, Progress
from trainbudget.live.assembly import merged_budget, planned
from trainbudget.live.harmless import harmless
from trainbudget.live.open_step import OpenStep
from trainbudget.monitor.life import Life


class Sessions(Life):
    """Training loops (several in one process are one run) and the phases around and inside them."""

    def _set_up(self, framework: str, clock: Clock | None, steps_total: int | None, arguments: dict[str, Any]) -> None:
        super()._set_up(framework, clock, steps_total, arguments)
        self._steps_total = steps_total
        self._boundary_s = self._zero_s
        self._open = OpenStep()

    @property
    def now_s(self) -> Callable[[], float]:
        """The monitor's clock, for adapters that time something themselves."""
        return self._now_s

    @property
    def boundary_s(self) -> float:
        """When the framework was last known to do something else than wait for data, on `now_s`."""
        return self._boundary_s

    @harmless
    def boundary(self) -> None:
        """The framework did something else until now: what follows, up to the step, is the wait for its data."""
        self._boundary_s = self._now_s()

    @harmless
    def train_begin(
        self, *, batch_size: float | None = None, attempt: int | None = None, steps_total: float | None = None
    ) -> None:
        """A training loop begins. Several in one process are one run."""
        self.start()
        self._open.forget()
        self._begin_training(batch_size=batch_size, attempt=attempt, steps_total=steps_total)

    @harmless
    def train_end(self) -> None:
        """The training loop is over; the run goes on until `close` (that is how a held GPU is seen)."""
        if self._training.running:
            self._training.leave("finished")
            self._drop_references()
            self._tell("train_end")

    @harmless
    def resume(self, *, step: int, highest_step: int | None = None) -> None:
        """Training goes on after `step`; `highest_step` was reached before, here or (as told) in an earlier process."""
        highest = highest_step if highest_step is not None else self._training.repeats_from(step)
        self._tell("resume", step=step, highest_step=highest)
        self._training.step = step

    @harmless
    def epoch_begin(self, epoch: float | None = None) -> None:
        self._tell("epoch_begin", epoch=epoch)

    @harmless
    def epoch_end(self, epoch: float | None = None) -> None:
        self._tell("epoch_end", epoch=epoch)

    @harmless
    def phase_begin(self, phase: str, *, items_total: float | None = None) -> None:
        self.start()
        self._training.phases_open += 1
        self._put(PhaseBegin(t_s=self._t_s(), phase=phase, items_total=items_total))

    @harmless
    def progress(self, phase: str, done: float, total: float | None = None) -> None:
        self._put(Progress(t_s=self._t_s(), phase=phase, items_done=done, items_total=total))

    @harmless
    def phase_end(self, phase: str, *, start_s: float | None = None, items_done: float | None = None) -> None:
        """A phase ended now. `start_s` (of `now`) for a phase whose beginning nobody announced."""
        begin = None if start_s is None else start_s - self._zero_s
        self._training.phases_open = max(0, self._training.phases_open - 1)
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

    @harmless
    def expect(self, **numbers: Number) -> None:
        """Budget numbers learned on the way (steps_total, max_sequence_tokens, ...); see `events.BudgetFact`."""
        fact = merged_budget(**numbers)
        if fact is not None:
            fact.t_s = self._t_s()
            self._put(fact)

    # --- inside

    def _begin_training(
        self, *, batch_size: float | None = None, attempt: int | None = None, steps_total: float | None = None
    ) -> None:
        self._training.begin()
        self._garbage.start()
        self._open.began_s = None
        self._boundary_s = self._now_s()
        self._tell("train_begin", batch_size=batch_size, attempt=attempt)
        self.expect(steps_total=planned(steps_total or self._steps_total, "given"))

    def _drop_references(self) -> None:
        super()._drop_references()
        self._open.began_s = None
