"""Two traces that differ by one layer, laid side by side: what the deeper one has more must repeat what stands right before it,
what else depends on depth must be a size. Nothing is guessed: where it is otherwise there is no answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainbudget.plan.layers.tokens import Token

#: So many tokens behind a difference must agree again before it counts as understood.
WINDOWS = (8, 3)


@dataclass(frozen=True, slots=True)
class Piece:
    """What is written once, or (`repeats`) once for every layer more; the modes say by which way each reference is followed."""

    tokens: tuple[Token, ...]
    growth_bytes: tuple[int, ...]  # of each token's size with every layer more
    modes: tuple[tuple[int, ...], ...]
    repeats: bool


def aligned(few: Sequence[Token], more: Sequence[Token]) -> list[Piece] | None:
    """The pieces of which both are made; None when there is another difference than repetitions and sizes."""
    return _Alignment(few, more).pieces()


class _Alignment:
    """Walks through both from the start; `_pairs` are sizes that were seen to stand for each other."""

    def __init__(self, few: Sequence[Token], more: Sequence[Token]) -> None:
        self._few, self._more = few, more
        self._pairs: set[tuple[int, int]] = set()
        self._pieces: list[Piece] = []
        self._once: list[tuple[Token, int, tuple[int, ...]]] = []
        self._partner: dict[int, int] = {}  # place in `more` -> place in `few`

    def pieces(self) -> list[Piece] | None:
        """See `aligned`."""
        few, more = self._few, self._more
        i = j = 0
        while i < len(few) or j < len(more):
            added: int | None = 0
            if i == len(few) or j == len(more) or not self._match(few[i], more[j]):
                added = self._added(i, j)
            if added is None or (added and not self._repeat(j, added)):
                return None
            j += added
            if i < len(few) and j < len(more):
                modes = _modes(few[i], more[j])
                if modes is None:
                    return None
                if few[i].size != more[j].size:
                    self._pairs.add((few[i].size, more[j].size))
                self._once.append((few[i], more[j].size - few[i].size, modes))
                self._partner[j] = i
                i, j = i + 1, j + 1
        self._close()
        return self._pieces

    def _close(self) -> None:
        if self._once:
            tokens, growth, modes = zip(*self._once, strict=True)
            self._pieces.append(Piece(tokens, growth, modes, False))
            self._once = []

    def _repeat(self, j: int, length: int) -> bool:
        """Whether the tokens from `j` on can be written once for every layer; then they are noted as such."""
        modes = [self._modes_in_block(j - length + o, j + o) for o in range(length)]
        known = tuple(m for m in modes if m is not None)
        if len(known) < length:
            return False
        self._close()
        self._pieces.append(Piece(tuple(self._more[j : j + length]), (0,) * length, known, True))
        return True

    def _added(self, i: int, j: int) -> int | None:
        """Tokens that `more` has in addition here; 0 for a size that depends on depth; None when it is something else."""
        few, more = self._few, self._more
        left = (len(more) - j) - (len(few) - i)
        for window in WINDOWS:
            for length in range(left + 1):
                if length and not (j >= length and self._same(more, j - length, j, length)):
                    continue
                if i == len(few):
                    if j + length == len(more):
                        return length
                    continue
                if j + length < len(more) and self._goes_on(i, j + length, window):
                    return length
        return None

    def _goes_on(self, i: int, j: int, window: int) -> bool:
        """Whether both agree from here on, but perhaps for the size at the first place (and of what is told of it then)."""
        few, more = self._few, self._more
        if not _agree(few[i], more[j]):
            return False
        pair = (few[i].size, more[j].size)
        return all(self._match(few[i + k], more[j + k], pair) for k in range(1, min(window + 1, len(few) - i, len(more) - j)))

    def _same(self, tokens: Sequence[Token], one: int, other: int, length: int) -> bool:
        return all(self._match(tokens[one + k], tokens[other + k]) for k in range(length))

    def _match(self, one: Token, other: Token, pair: tuple[int, int] | None = None) -> bool:
        sizes = (one.size, other.size)
        alike = one.size == other.size or sizes == pair or sizes in self._pairs
        return alike and _agree(one, other)

    def _modes_in_block(self, before: int, here: int) -> tuple[int, ...] | None:
        """A way that holds from layer to layer and from depth to depth."""
        sets = _mode_sets(self._more[before], self._more[here])
        if before in self._partner:
            deep = _mode_sets(self._few[self._partner[before]], self._more[before])
            sets = [[m for m in s if m in d] for s, d in zip(sets, deep, strict=True)]
        return None if any(not s for s in sets) else tuple(s[0] for s in sets)


def _agree(one: Token, other: Token) -> bool:
    """Equal but for the size."""
    return one.fixed == other.fixed and _modes(one, other) is not None


def _modes(one: Token, other: Token) -> tuple[int, ...] | None:
    """For each reference the first way in which both name it alike."""
    if len(one.references) != len(other.references):
        return None
    sets = _mode_sets(one, other)
    return None if any(not s for s in sets) else tuple(s[0] for s in sets)


def _mode_sets(one: Token, other: Token) -> list[list[int]]:
    return [
        [m for m, (x, y) in enumerate(zip(a, b, strict=True)) if x == y] if len(a) == len(b) else []
        for a, b in zip(one.references, other.references, strict=True)
    ]
