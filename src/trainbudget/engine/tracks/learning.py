"""What the run reports about learning: the loss, the gradient's norm, and whether they are numbers at all."""

from __future__ import annotations

import math

from trainbudget.engine.tracks.series import Series
from trainbudget.events import Step


class Streak:
    """How many reported values in a row were bad, and since when."""

    __slots__ = ("count", "since_s", "since_step")

    def __init__(self) -> None:
        self.count = 0
        self.since_s: float | None = None
        self.since_step: int | None = None

    def take(self, bad: bool, t_s: float, step: int) -> None:
        if not bad:
            self.count, self.since_s, self.since_step = 0, None, None
            return
        if self.count == 0:
            self.since_s, self.since_step = t_s, step
        self.count += 1


class LearningTrack:
    """Losses of one session; a session that begins anew has learned nothing yet."""

    def __init__(self) -> None:
        self.begin_session()

    def begin_session(self) -> None:
        self.losses = Series(capacity=512, tail=64)
        self.bad_loss = Streak()
        self.bad_gradient = Streak()
        self.largest_gradient: float | None = None

    def on_step(self, event: Step) -> None:
        loss, norm = event.loss, event.grad_norm
        first = event.step - max(1, event.count or 1) + 1  # of a line that stands for several, any may be the bad one
        if loss is not None:
            finite = math.isfinite(loss)
            self.bad_loss.take(not finite, event.t_s, first)
            if finite:
                self.losses.add(event.t_s, event.step, loss)
        if norm is not None and not event.skipped:
            finite = math.isfinite(norm)
            self.bad_gradient.take(not finite, event.t_s, first)
            if finite:
                self.largest_gradient = max(self.largest_gradient or 0.0, abs(norm))
