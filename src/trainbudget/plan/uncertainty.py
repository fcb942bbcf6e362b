"""How far a predicted peak may be off, part by part, with the reason of each part.

A part is the 90 % range of one cause. Parts are independent, so their distances add as squares. Sizes come from the mechanism,
not from the rows they are checked on (``bench/prediction``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A value in bytes and its 90 % interval."""

    value: int
    low: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UncertainPart:
    """One cause: how many bytes less or more it may make."""

    reason: str
    less_bytes: float
    more_bytes: float


def interval(value: int, parts: Iterable[UncertainPart], floor: int = 0) -> Interval:
    """The 90 % interval of ``value`` under independent parts, never below ``floor``."""
    parts = list(parts)
    less = math.sqrt(sum(p.less_bytes**2 for p in parts))
    more = math.sqrt(sum(p.more_bytes**2 for p in parts))
    return Interval(value=value, low=max(floor, int(value - less)), high=int(value + more))
