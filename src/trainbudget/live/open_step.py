"""The open or coming optimizer step: what has been told of it since the last one ended."""

from __future__ import annotations

from trainbudget.events import Step
from trainbudget.live.batch import host_number


class OpenStep:
    """Gathers one step at a time; None = nobody has told. Times are the caller's clock.

    Attributes:
        began_s: when the step was opened; None while none is open.
        wait_s: waited for its data so far.
    """

    __slots__ = (
        "began_s", "grad_norm", "longest", "loss", "micro_steps", "optimizer_began_s", "optimizer_s", "samples", "tokens",
        "useful_tokens", "wait_inside_s", "wait_s",
    )  # fmt: skip
    began_s: float | None
    wait_s: float | None
    wait_inside_s: float
    tokens: float | None
    useful_tokens: float | None
    samples: float | None
    longest: float | None
    loss: float | None
    grad_norm: float | None
    micro_steps: int
    optimizer_s: float | None
    optimizer_began_s: float | None

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Nothing is known, no step is open."""
        self.began_s = self.wait_s = self.tokens = self.useful_tokens = self.samples = self.longest = None
        self.loss = self.grad_norm = self.optimizer_s = self.optimizer_began_s = None
        self.wait_inside_s = 0.0
        self.micro_steps = 0

    def waited(self, seconds: float) -> None:
        """A batch was waited for, before the step or inside it (between two micro-batches)."""
        self.wait_s = (self.wait_s or 0.0) + seconds
        if self.began_s is not None:
            self.wait_inside_s += seconds

    def seen(
        self, tokens: float | None, useful_tokens: float | None, samples: float | None, max_sequence_tokens: float | None
    ) -> None:
        """What a (micro-)batch holds: sums, and the longest sequence."""
        if (number := host_number(tokens)) is not None:
            self.tokens = (self.tokens or 0.0) + number
        if (number := host_number(useful_tokens)) is not None:
            self.useful_tokens = (self.useful_tokens or 0.0) + number
        if (number := host_number(samples)) is not None:
            self.samples = (self.samples or 0.0) + number
        if (number := host_number(max_sequence_tokens)) is not None:
            self.longest = max(self.longest or 0.0, number)

    def measured(self, loss: float | None, grad_norm: float | None) -> None:
        """Loss and gradient norm, the newest that are numbers."""
        if (number := host_number(loss)) is not None:
            self.loss = number
        if (number := host_number(grad_norm)) is not None:
            self.grad_norm = number

    def optimizer_ended(self, now_s: float) -> None:
        """What `optimizer_began_s` began is over; it may come several times a step."""
        if self.optimizer_began_s is not None:
            self.optimizer_s = (self.optimizer_s or 0.0) + now_s - self.optimizer_began_s
            self.optimizer_began_s = None

    def end(self, number: int, skipped: bool | None, *, began_s: float, now_s: float, zero_s: float) -> Step:
        """The step as a fact, stamped with seconds since `zero_s`. Afterwards nothing is known of the next one."""
        fact = Step(
            t_s=now_s - zero_s,
            step=number,
            # Waits between micro-batches are shown as if they had come first: same sums, one place.
            start_s=min(now_s, began_s + self.wait_inside_s) - zero_s,
            data_wait_s=self.wait_s,
            loader_wait_s=self.wait_s,
            optimizer_s=self.optimizer_s,
            micro_steps=self.micro_steps + 1 if self.micro_steps else None,
            samples=self.samples,
            tokens=self.tokens,
            useful_tokens=self.useful_tokens,
            max_sequence_tokens=self.longest,
            loss=self.loss,
            grad_norm=self.grad_norm,
            skipped=skipped,
        )
        self.forget()
        return fact
