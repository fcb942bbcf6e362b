"""Pieces become events and parameters again, for as many layers as asked for."""

from __future__ import annotations

import re
from collections.abc import Sequence

from trainbudget.plan.layers.alignment import Piece
from trainbudget.plan.layers.tokens import ON_STORAGE, ON_UNIT, OWN, Alive, Reference, Token, setup_of
from trainbudget.plan.tracing.trace import Event, Kind, Parameter


class EventWriter:
    """Tokens become events again, storages numbered in order of birth."""

    def __init__(self, *, parameters: int, units: int) -> None:
        self._count, self._units = parameters, units
        self._alive = Alive()
        self._next = self._last_parameter = self._last_unit = 0
        self._gradients: dict[int, int] = {}  # parameter -> storage
        self._events: list[Event] = []

    def write(self, pieces: Sequence[Piece], layers: int) -> list[Event]:
        """All events with `layers` layers more.

        Raises:
            IndexError, KeyError: a reference leads nowhere: the pieces do not hold at this depth.
        """
        for piece in pieces:
            for _ in range(layers if piece.repeats else 1):
                for token, growth, modes in zip(piece.tokens, piece.growth_bytes, piece.modes, strict=True):
                    self._token(token, token.size + layers * growth, modes)
        return self._events

    def _token(self, token: Token, size: int, modes: tuple[int, ...]) -> None:
        kind = token.fixed[0]
        if kind == Kind.MALLOC:
            category = int(token.fixed[1])  # type: ignore[call-overload]
            self._alive.born(self._next, size, category)
            self._events.append((Kind.MALLOC, self._next, size, category))
            self._next += 1
        elif token.references and kind in ON_STORAGE:
            self._on_storage(token, size, modes)
        elif kind in ON_UNIT:
            self._last_unit = _named(token.references[0], modes[0], self._units, self._last_unit)
            self._events.append((kind, self._last_unit, 0, 0))  # type: ignore[arg-type]
        else:
            self._events.append((kind, token.fixed[1], size, token.fixed[2]))  # type: ignore[arg-type]

    def _on_storage(self, token: Token, size: int, modes: tuple[int, ...]) -> None:
        kind, category, c = (int(v) for v in token.fixed)  # type: ignore[call-overload]
        b = 0
        if kind == Kind.GRADIENT:
            b = self._last_parameter = _named(token.references[1], modes[1], self._count, self._last_parameter)
        if token.references[0] == OWN:
            storage = self._gradients[b]
        else:
            storage = self._ranked(token.references[0], modes[0], size, category)
        if kind == Kind.FREE:
            self._alive.gone(storage)
        elif kind == Kind.RETAG:
            self._alive.moved(storage, c)
        else:
            self._gradients[b] = storage
        self._events.append((kind, storage, b, c))

    def _ranked(self, reference: Reference, mode: int, size: int, category: int) -> int:
        same = self._alive.classes[size, category]
        rank = reference[mode]
        if rank >= len(same):
            raise IndexError(rank)
        return same[rank] if mode == 0 else same[len(same) - 1 - rank]


def _named(reference: Reference, mode: int, count: int, last: int) -> int:
    number = (reference[0], count - 1 - reference[1], last + reference[2])[mode]
    if not 0 <= number < count:
        raise IndexError(number)
    return number


def write_parameters(pieces: Sequence[Piece], layers: int, *, events: Sequence[Event], units: int) -> list[Parameter]:
    """Parameters of the deeper model, whose storages are among those at the start of `events`.

    Raises:
        IndexError, KeyError: a reference leads nowhere: the pieces do not hold at this depth.
    """
    out: list[Parameter] = []
    classes = setup_of(events).classes
    last, last_unit = dict.fromkeys(classes, 0), 0
    for piece in pieces:
        for repeat in range(layers if piece.repeats else 1):
            for token, modes in zip(piece.tokens, piece.modes, strict=True):
                shape, elements, item_bytes, trainable, graded, group = token.fixed
                storage = -1
                if group is not None:
                    same = classes[group]  # type: ignore[index]
                    last[group] = _named(token.references[0], modes[0], len(same), last[group])  # type: ignore[index]
                    storage = same[last[group]]  # type: ignore[index]
                last_unit = _named(token.references[-1], modes[-1], units, last_unit)
                out.append(
                    Parameter(
                        name=_of_repeat(token.name, repeat),
                        shape=shape,  # type: ignore[arg-type]
                        elements=elements,  # type: ignore[arg-type]
                        item_bytes=item_bytes,  # type: ignore[arg-type]
                        trainable=bool(trainable),
                        storage=storage,
                        unit=last_unit,
                        graded=bool(graded),
                    )
                )
    return out


def _of_repeat(name: str, repeat: int) -> str:
    """The name with its layer's number moved on."""
    return re.sub(r"(?<=\.)\d+(?=\.)", lambda m: str(int(m.group()) + repeat), name, count=1) if repeat else name
