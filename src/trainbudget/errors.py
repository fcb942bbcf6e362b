"""The errors trainbudget raises on purpose.

    TrainBudgetError
    +-- ConfigError          a bad argument, variable or file (also a ValueError)
    +-- TraceError           a trace that cannot be read
    +-- GpuUnavailableError  no device data can be had, with the reason

A command line turns each of them into one line on stderr and exit code 2; none of them ever reaches a training loop.
"""

from __future__ import annotations


class TrainBudgetError(Exception):
    """Base of every error raised on purpose; its text says what to do."""


class ConfigError(TrainBudgetError, ValueError):
    """A setting is unusable: unknown name, wrong unit, negative price, mixed currencies."""


class TraceError(TrainBudgetError):
    """A trace is missing, foreign or of a newer schema."""


class GpuUnavailableError(TrainBudgetError):
    """The backend cannot be opened.

    Attributes:
        code: one of ``library_not_found``, ``driver_mismatch``, ``permission``, ``cpu_build``, ``unknown``.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
