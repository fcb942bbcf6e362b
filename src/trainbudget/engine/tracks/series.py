"""Bounded series and windows of numbers: memory does not grow with the length of a run."""

from __future__ import annotations

import statistics
from collections import deque

import msgspec


class Point(msgspec.Struct, frozen=True):
    """One value at a time (seconds) and, where it belongs to one, an optimizer step."""

    t_s: float
    step: int | None
    value: float


class Series:
    """Points that cover the whole run evenly: when full, every other one is dropped and the stride doubles.

    `tail` keeps the newest points undiluted.
    """

    def __init__(self, capacity: int = 512, tail: int = 128) -> None:
        self.points: list[Point] = []
        self.tail: deque[Point] = deque(maxlen=tail)
        self.total = 0
        self._capacity = capacity
        self._stride = 1

    def add(self, t_s: float, step: int | None, value: float) -> None:
        point = Point(t_s, step, value)
        self.tail.append(point)
        if self.total % self._stride == 0:
            self.points.append(point)
            if len(self.points) >= self._capacity:
                del self.points[1::2]
                self._stride *= 2
        self.total += 1

    def first_after(self, t_s: float | None, *, near: int = 0) -> int:
        """Place of the first of `points` at or after `t_s` (None = of all); quick where `near` is about right."""
        points = self.points
        if t_s is None or not points:
            return 0
        place = min(near, len(points))
        while place > 0 and points[place - 1].t_s >= t_s:
            place -= 1
        while place < len(points) and points[place].t_s < t_s:
            place += 1
        return place

    @property
    def last(self) -> Point | None:
        return self.tail[-1] if self.tail else None

    def clear(self) -> None:
        self.points.clear()
        self.tail.clear()
        self.total, self._stride = 0, 1


def median(values: list[float]) -> float | None:
    """The median, or None of nothing."""
    return statistics.median(values) if values else None


def quantile(values: list[float], q: float) -> float | None:
    """The q-quantile by linear interpolation, or None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
