"""A trace as tokens that say nothing of where they stand, so that the same layer reads the same at every place.

Storages are named by their rank among the living ones of the same size and category, from the oldest or from the newest, and a
gradient that is added to by its parameter; parameters and units by their number from the first, from the last or from the one
before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from trainbudget.plan.tracing.trace import Event, Kind, Trace

ON_STORAGE = (Kind.FREE, Kind.RETAG, Kind.GRADIENT)
ON_UNIT = (Kind.UNIT_PRE_FORWARD, Kind.UNIT_POST_FORWARD, Kind.UNIT_PRE_BACKWARD, Kind.UNIT_POST_BACKWARD)
#: Ways to name one thing by number.
Reference = tuple[int, ...]
#: The storage in which the parameter's gradient is already.
OWN: Reference = (0,)


@dataclass(frozen=True, slots=True)
class Token:
    """One event or parameter; `name` is a parameter's and no part of what it is."""

    fixed: tuple[object, ...]
    size: int = 0
    references: tuple[Reference, ...] = ()
    name: str = field(default="", compare=False)


@dataclass(slots=True)
class Alive:
    """Living storages by size and category, oldest first."""

    of: dict[int, tuple[int, int]] = field(default_factory=dict)
    classes: dict[tuple[int, int], list[int]] = field(default_factory=dict)

    def born(self, storage: int, size: int, category: int) -> None:
        self.of[storage] = (size, category)
        self.classes.setdefault((size, category), []).append(storage)

    def gone(self, storage: int) -> None:
        self.classes[self.of.pop(storage)].remove(storage)

    def moved(self, storage: int, category: int) -> None:
        size = self.of[storage][0]
        self.gone(storage)
        self.born(storage, size, category)

    def rank(self, storage: int) -> Reference:
        same = self.classes[self.of[storage]]
        place = same.index(storage)
        return place, len(same) - 1 - place


class Counted:
    """A trace as tokens."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def tokens(self) -> list[Token]:
        """One for each event."""
        alive, out = Alive(), []
        last_parameter = last_unit = 0
        gradients: dict[int, int] = {}  # parameter -> storage
        count, units = len(self._trace.parameters), len(self._trace.units)
        for kind, a, b, c in self._trace.events:
            if kind == Kind.MALLOC:
                alive.born(a, b, c)
                out.append(Token((kind, c), b))
            elif kind in ON_STORAGE and a in alive.of:
                size, category = alive.of[a]
                references: tuple[Reference, ...] = (alive.rank(a),)
                if kind == Kind.FREE:
                    alive.gone(a)
                elif kind == Kind.RETAG:
                    alive.moved(a, c)
                else:
                    storage = OWN if gradients.get(b) == a else references[0]
                    references = (storage, (b, count - 1 - b, b - last_parameter))
                    gradients[b] = a
                    last_parameter = b
                out.append(Token((kind, category, c), size, references))
            elif kind in ON_UNIT:
                out.append(Token((kind,), 0, ((a, units - 1 - a, a - last_unit),)))
                last_unit = a
            else:
                out.append(Token((kind, a, c), b))
        return out

    def parameters(self) -> list[Token]:
        """One for each parameter; its storage by its rank among those of its size that are there before the first step."""
        there = setup_of(self._trace.events)
        out, last, last_unit, units = [], dict.fromkeys(there.classes, 0), 0, len(self._trace.units)
        for p in self._trace.parameters:
            storage: Reference = ()
            group = there.of.get(p.storage)
            if group is not None:
                place, behind = there.rank(p.storage)
                storage = (place, behind, place - last[group])
                last[group] = place
            unit = (p.unit, units - 1 - p.unit, p.unit - last_unit)
            last_unit = p.unit
            fixed = (p.shape, p.elements, p.item_bytes, p.trainable, p.graded, group)
            out.append(Token(fixed, 0, (storage, unit) if storage else (unit,), p.name))
        return out


def setup_of(events: Sequence[Event]) -> Alive:
    """The storages that are there before the first step."""
    there = Alive()
    for event in takewhile(lambda e: e[0] == Kind.MALLOC, events):
        there.born(*event[1:])
    return there
