"""What makes no sense is unknown: the one place where facts are looked over before anybody computes with them.

Not-a-number and infinite numbers (a driver's error value, a division by zero in a hook), negative sizes and durations, and
times that go back become None (or now). Losses and gradient norms keep theirs: there NaN is the news.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeVar

import msgspec

from trainbudget.events import KINDS, AnyEvent, BudgetFact, Event, Plan, Step

#: Numbers that may be negative or not finite and still mean something.
_FREE = frozenset({"loss", "grad_norm"})
#: Times: may lie before the run's zero, but must be finite.
_TIMES = frozenset({"t_s", "start_s", "end_s", "process_started_s"})

#: No second, byte, watt or token count of a training run is as large.
MOST = 1e30

_E = TypeVar("_E", bound=AnyEvent)


def sane(event: _E, now_s: float) -> _E:
    """The fact, or a copy of it without what makes no sense. Half a microsecond for a usual one."""
    if not now_s <= event.t_s < math.inf:  # goes back, or is no number
        event = msgspec.structs.replace(event, t_s=now_s)
    look = _LOOK.get(type(event))
    if look is not None:
        for value in look(event):
            if value is not None and not 0.0 <= value < MOST:
                return _without_nonsense(event)
    return _clean_nested(event) if type(event) in _NESTED else event


def _without_nonsense(event: _E) -> _E:
    bad: dict[str, Any] = {}
    for name in event.__struct_fields__:
        value = getattr(event, name)
        if not isinstance(value, float) or name in _FREE or name == "t_s":
            continue
        if not abs(value) < MOST or (value < 0.0 and name not in _TIMES):
            bad[name] = None
    return msgspec.structs.replace(event, **bad) if bad else event


def _clean_nested(event: _E) -> _E:
    if isinstance(event, Event) and event.detail:
        detail = {key: value for key, value in event.detail.items() if not _is_nonsense(value)}
        return event if len(detail) == len(event.detail) else msgspec.structs.replace(event, detail=detail)
    if isinstance(event, Plan):
        points = event.peak_by_tokens
        if points is not None:
            points = [p for p in points if len(p) >= 2 and all(math.isfinite(v) and v >= 0.0 for v in p)]
        longest = event.longest
        if longest is not None:
            longest = [b for b in longest if math.isfinite(b.tokens) and b.tokens > 0.0]
        peaks = event.phase_peaks
        if peaks is not None:
            peaks = {name: v for name, v in peaks.items() if math.isfinite(v) and v > 0.0}
        return msgspec.structs.replace(event, peak_by_tokens=points or None, longest=longest or None, phase_peaks=peaks or None)
    return event


def _is_nonsense(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _numbers_of(kind: type) -> Callable[[Any], tuple[Any, ...]] | None:
    """Reads all of a kind's numbers that must be finite and not negative, in one call."""
    names = [
        f.name
        for f in msgspec.structs.fields(kind)
        if "float" in str(f.type) and "dict" not in str(f.type) and "list" not in str(f.type) and f.name not in _FREE | _TIMES
    ]
    if kind is Step:
        # Times of a step are used as they come; the others' are read where they are needed and clamped there.
        names = [*names, "start_s", "end_s"]
    if not names:
        return None
    # attrgetter of a single name gives no tuple; a name twice does no harm.
    return attrgetter(*names) if len(names) > 1 else attrgetter(names[0], names[0])


_NESTED = (Event, Plan)
_LOOK: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    kind: look for kind in KINDS.values() if kind is not BudgetFact and (look := _numbers_of(kind)) is not None
}
