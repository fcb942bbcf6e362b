"""Why a step could not be traced, in one line."""

from __future__ import annotations

import re

from trainbudget.errors import TrainBudgetError


class TraceFailed(TrainBudgetError):
    """The step cannot be traced; the text is the reason in one line."""


_KNOWN = (
    (r"DynamicOutputShape|data.dependent|GuardOnDataDependent", "the step's control flow depends on tensor values"),
    (r"UnsupportedOperator|no fake impl|Could not run '(?P<op>[\w:.]+)'", "an operator has no shape rule for fake tensors"),
    (r"CheckpointError", "activation checkpointing recomputes something else than it saved"),
)


def reason_of(error: BaseException) -> str:
    """The error as one line of at most 300 characters, with what is known about its cause first."""
    text = " ".join(str(error).split()) or type(error).__name__
    whole = f"{type(error).__name__}: {text}"
    for pattern, meaning in _KNOWN:
        if re.search(pattern, whole):
            return f"{meaning} ({whole})"[:300]
    return whole[:300]


def reason_in_stderr(text: str) -> str | None:
    """The operator that aborted a tracing process, from what the recorder printed before it died."""
    for line in reversed(text.splitlines()):
        if line.startswith("trainbudget-trace: "):
            return line.removeprefix("trainbudget-trace: ")[:300]
    return None
