"""Hooks of optimizer steps: data waits, batches, micro-batches, losses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from trainbudget.clock import Clock
from trainbudget.live.harmless import harmless
from trainbudget.live.intake import TimedStep
from trainbudget.live.probes.step_clock import CudaStepClock
from trainbudget.monitor.sessions import Sessions

_T = TypeVar("_T")
_Me = TypeVar("_Me", bound="Steps")

#: torch's allocator is read on the training thread after a step, at most this often.
ALLOCATOR_S = 0.5


class Steps(Sessions):
    """One optimizer step after the other, inside a training loop that begins with the first of them if nobody has said so."""

    def _set_up(self, framework: str, clock: Clock | None, steps_total: int | None, arguments: dict[str, Any]) -> None:
        super()._set_up(framework, clock, steps_total, arguments)
        self._allocator_s = 0.0
        self._cuda_clock = CudaStepClock() if self.settings.step_clock != "wall" else None

    @property
    def waited_s(self) -> float | None:
        """Seconds waited for the coming step's data so far; None = nobody has timed any."""
        return self._open.wait_s

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
        self: _Me,
        *,
        sync: bool = True,
        tokens: float | None = None,
        useful_tokens: float | None = None,
        samples: float | None = None,
        max_sequence_tokens: float | None = None,
    ) -> Iterator[_Me]:
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
        self._open.waited(seconds)

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
        self._open.seen(tokens, useful_tokens, samples, max_sequence_tokens)

    @harmless
    def metrics(self, *, loss: float | None = None, grad_norm: float | None = None) -> None:
        """Loss and gradient norm of the open or coming step, as host numbers."""
        self._open.measured(loss, grad_norm)

    @harmless
    def step_begin(self, *, infer_wait: bool = False) -> None:
        """The first micro-batch of an optimizer step begins. Nothing happens when one is open already.

        Args:
            infer_wait: nobody timed the loader, so the wait is the time since the last boundary.
        """
        step = self._open
        if step.began_s is not None:
            return
        if infer_wait and step.wait_s is None:
            step.wait_s = max(0.0, self._now_s() - self._boundary_s)
        if self._feeder is None:
            self.start()
        if not self._training.running:
            self._begin_training()  # what was waited for and seen already belongs to this step
        step.began_s = self._now_s()
        if self._cuda_clock is not None:
            self._cuda_clock.begin()

    @harmless
    def micro_step(self) -> None:
        """A micro-batch that is not the step's last is done."""
        self._open.micro_steps += 1

    @harmless
    def optimizer_begin(self) -> None:
        self._open.optimizer_began_s = self._now_s()

    @harmless
    def optimizer_end(self) -> None:
        self._open.optimizer_ended(self._now_s())

    @harmless
    def step_end(self, *, step: int | None = None, skipped: bool | None = None) -> None:
        """The optimizer step is complete."""
        now_s = self._now_s()
        began_s = self._open.began_s
        if began_s is None:
            return
        number = self._training.stepped_to(step)
        fact = self._open.end(number, skipped, began_s=began_s, now_s=now_s, zero_s=self._zero_s)
        marks = self._cuda_clock.end() if self._cuda_clock is not None else None
        self._queue.put(fact if marks is None else TimedStep(fact, marks))
        self._boundary_s = now_s
        if now_s >= self._allocator_s:
            self._allocator_s = now_s + ALLOCATOR_S
            self._read_allocators("step_end")

    # --- inside

    @harmless
    def _abandon_step(self) -> None:
        self._open.forget()

    @harmless
    def _note_workers(self, loader: Any) -> None:
        workers = getattr(loader, "num_workers", None)
        if isinstance(workers, int):
            self.loader_workers = workers

    def _drop_references(self) -> None:
        super()._drop_references()
        if self._cuda_clock is not None:
            self._cuda_clock.drop()
