"""Merging ordinary steps: above ten a second one line stands for several (sums, maxima, the mean loss)."""

from __future__ import annotations

import copy
import math

from trainbudget.events import Step

_SUMS = (
    "data_wait_s", "data_wait_idle_s", "loader_wait_s", "forward_s", "backward_s", "optimizer_s", "communication_s",
    "pre_collective_s", "gpu_busy_s", "samples", "tokens", "useful_tokens", "micro_steps",
)  # fmt: skip
_MAXIMA = ("max_sequence_tokens", "grad_norm")
#: A step that was waited for this long is no more than one of ten a second: it keeps its own line, because waits that are
#: averaged over their neighbours lose the rhythm that tells why data comes late.
LONG_WAIT_S = 0.1


def step_seconds(step: Step) -> float:
    """Seconds inside the step or steps of a line."""
    if step.step_s is not None:
        return step.step_s
    end_s = step.end_s if step.end_s is not None else step.t_s
    return max(0.0, end_s - step.start_s) if step.start_s is not None else 0.0


def merge_steps(first: Step, second: Step) -> Step:
    """One line for both. A NaN loss stays visible; a skipped or unknown part makes the sum unknown only where it must."""
    merged = copy.copy(second)
    merged.start_s = first.start_s
    merged.step_s = step_seconds(first) + step_seconds(second)
    merged.count = (first.count or 1) + (second.count or 1)
    for name in _SUMS:
        a, b = getattr(first, name), getattr(second, name)
        setattr(merged, name, None if a is None or b is None else a + b)
    for name in _MAXIMA:
        a, b = getattr(first, name), getattr(second, name)
        known = [v for v in (a, b) if v is not None]
        setattr(merged, name, next((v for v in known if math.isnan(v)), max(known, default=None)))
    merged.loss = _mean_loss(first, second)
    return merged


def _mean_loss(first: Step, second: Step) -> float | None:
    """The mean of the lines that tell one: the largest of several would fall when fewer steps share a line."""
    if first.loss is None or second.loss is None:
        return second.loss if first.loss is None else first.loss
    a, b = first.count or 1, second.count or 1
    return (first.loss * a + second.loss * b) / (a + b)


def mergeable(first: Step, second: Step) -> bool:
    """Ordinary neighbours only: a repeated or skipped step, and one that was waited for, keeps its own line."""
    if _waited(first) or _waited(second):
        return False
    return second.step > first.step and not first.skipped and not second.skipped


def _waited(step: Step) -> bool:
    return (step.data_wait_s or 0.0) >= LONG_WAIT_S and (step.count or 1) == 1
