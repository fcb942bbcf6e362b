"""What a memory track remembers of an epoch, of a phase, and of the moment before a failure."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class EpochLevel:
    """At-rest levels of one epoch."""

    first_step: int
    first: float
    low: float
    high: float
    last: float
    points: int = 1


@dataclass(slots=True)
class PhaseMemory:
    """What an evaluation or a save has held so far: (t_s, allocated, peak since the previous line)."""

    phase: str
    start_s: float
    start_allocated: float
    lines: list[tuple[float, float, float | None]] = field(default_factory=list)


@dataclass(slots=True)
class Failure:
    """The allocator before a failed allocation: `excess_bytes` of its cache were not in use at any peak so far."""

    t_s: float
    allocated_bytes: float | None
    peak_bytes: float | None
    reserved_bytes: float | None
    excess_bytes: float | None
