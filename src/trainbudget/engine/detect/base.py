"""What a detector is: a small, pure look at the timeline that says which conditions hold right now.

Memory of what was raised lives in `engine.engine.Board` alone. A detector never fires on a value it does not have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from trainbudget.engine.ledger import Ledger
from trainbudget.engine.timeline import Timeline
from trainbudget.findings import CodeRecord, Forecast, Severity


@dataclass(frozen=True, slots=True)
class Signal:
    """A condition that holds now. `severity` None = the code's default; `once` = a post-mortem that is never cleared."""

    code: str
    gpu: int | None = None
    rank: int | None = None
    phase: str | None = None
    cause: str | None = None
    severity: Severity | None = None
    summary: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    forecast: Forecast | None = None
    once: bool = False

    @property
    def key(self) -> tuple[str, int | None, int | None]:
        return (self.code, self.gpu, self.rank)


@dataclass(frozen=True, slots=True)
class View:
    """What a detector may look at: the timeline, the ledger, its thresholds and what is already raised."""

    timeline: Timeline
    ledger: Ledger
    limits: Mapping[str, float]
    raised: frozenset[str] = frozenset()

    def limit(self, record: CodeRecord, name: str) -> float:
        """The threshold `name` of a record: the user's value where given, else the default."""
        if self.limits:  # detectors ask at every look and nearly nobody tunes: the common case must cost nothing
            full = f"{record.code}.{name}"
            if full in self.limits:
                return self.limits[full]
            if name in self.limits:
                return self.limits[name]
        for threshold in record.thresholds:
            if threshold.name == name:
                return threshold.default
        raise KeyError(f"{record.code}.{name}")


class Detector(Protocol):
    """One condition. `every_s` is how often it is worth a look; `hold_s` and `clear_s` are its debounce in trace seconds."""

    record: ClassVar[CodeRecord]
    every_s: ClassVar[float]
    hold_s: ClassVar[float]
    clear_s: ClassVar[float]

    def check(self, view: View) -> Iterable[Signal]:
        """The conditions that hold now; empty while anything it needs is unknown."""
        ...


class BaseDetector:
    """Defaults for the class variables of a `Detector`."""

    every_s: ClassVar[float] = 5.0
    hold_s: ClassVar[float] = 0.0
    #: A condition must be gone for this long before its finding is cleared: values that hover about a threshold do not flap.
    clear_s: ClassVar[float] = 30.0
