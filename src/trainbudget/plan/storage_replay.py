"""The storage events of a trace applied to a ledger: births, deaths, changed categories, kernels' scratch."""

from __future__ import annotations

from trainbudget.plan.ledger import Ledger
from trainbudget.plan.tracing.trace import Category, Event, Kind


class StorageReplay:
    """Maps the trace's storages to blocks of the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._blocks: dict[int, int] = {}
        self._scratch: list[int] = []

    def apply(self, event: Event) -> bool:
        """Whether the event was one of a storage or of the allocator."""
        kind, a, b, c = event
        if kind == Kind.MALLOC:
            self.born(a, b, Category(c))
        elif kind == Kind.FREE:
            self.free(a)
        elif kind == Kind.RETAG:
            self.retag(a, Category(c))
        elif kind == Kind.WORKSPACE:
            self._scratch.append(b)
            if len(self._scratch) == c:
                self._ledger.scratch(self._scratch)
                self._scratch = []
        elif kind == Kind.EMPTY_CACHE:
            self._ledger.empty_cache()
        else:
            return False
        return True

    def born(self, storage: int, size: int, category: Category) -> None:
        """A storage gets its block."""
        handle = self._ledger.malloc(size, category)
        if handle is not None:
            self._blocks[storage] = handle

    def free(self, storage: int) -> None:
        """A storage dies; one that is gone already is ignored (a strategy may have taken it away)."""
        self._ledger.free(self._blocks.pop(storage, None))

    def retag(self, storage: int, category: Category) -> None:
        """A storage holds something else from now on."""
        handle = self._blocks.get(storage)
        if handle is not None:
            self._ledger.retag(handle, category)

    def free_all(self) -> None:
        """Everything dies."""
        for storage in list(self._blocks):
            self.free(storage)
