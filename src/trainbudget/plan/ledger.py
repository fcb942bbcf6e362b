"""Counts what is allocated, by category and phase, while events are replayed through a simulated allocator."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainbudget.plan.allocator import AllocatorOptions, Block, CachingAllocator
from trainbudget.plan.tracing.trace import Category, Phase


class ByteCounter:
    """An allocator without rounding or segments, to compare with bytes counted on CPU ranks."""

    def __init__(self) -> None:
        self.reserved_bytes = 0
        self.retries = 0

    def malloc(self, requested_bytes: int, stream: str = "main") -> Block:
        """A block of exactly the requested size."""
        self.reserved_bytes += requested_bytes
        return Block(requested_bytes, (stream, False))

    def free(self, block: Block) -> None:
        """Forget a block."""
        self.reserved_bytes -= block.size

    def release_unused(self) -> int:
        """There are no segments."""
        return 0


@dataclass(slots=True)
class Peak:
    """The highest allocated bytes seen and what they were made of."""

    allocated_bytes: int = 0
    phase: Phase = Phase.SETUP
    categories: dict[Category, int] = field(default_factory=dict)


class Ledger:
    """Mallocs and frees by handle; peaks as a whole and for each phase."""

    def __init__(self, options: AllocatorOptions | None = None, *, exact: bool = False) -> None:
        self.allocator: CachingAllocator | ByteCounter = ByteCounter() if exact else CachingAllocator(options)
        self.phase = Phase.SETUP
        self.allocated_bytes = 0
        self.peak = Peak()
        self.phase_peaks: dict[Phase, int] = {}
        self.peak_reserved_bytes = 0
        self._categories = [0] * len(Category)
        self._held: dict[int, tuple[Block, Category]] = {}
        self._next = 0

    def malloc(self, size: int, category: Category, stream: str = "main") -> int | None:
        """Handle of a new block; None for no bytes."""
        if size <= 0:
            return None
        block = self.allocator.malloc(int(size), stream)
        self._next += 1
        self._held[self._next] = (block, category)
        self._categories[category] += block.size
        self.allocated_bytes += block.size
        self.note_peak()
        return self._next

    def free(self, handle: int | None) -> None:
        """Give a block back; None is ignored."""
        if handle is None:
            return
        block, category = self._held.pop(handle)
        self._categories[category] -= block.size
        self.allocated_bytes -= block.size
        self.allocator.free(block)

    def retag(self, handle: int, category: Category) -> None:
        """The block now holds something else."""
        block, old = self._held[handle]
        self._held[handle] = (block, category)
        self._categories[old] -= block.size
        self._categories[category] += block.size

    def scratch(self, sizes: list[int], category: Category = Category.WORKSPACE) -> None:
        """Buffers that one kernel takes together and returns."""
        handles = [self.malloc(size, category) for size in sizes]
        for handle in handles:
            self.free(handle)

    def empty_cache(self) -> None:
        """The allocator gives its unused segments back."""
        self.allocator.release_unused()

    def enter(self, phase: Phase) -> None:
        """What follows belongs to ``phase``."""
        self.phase = phase
        self.note_peak()

    def note_peak(self) -> None:
        """Compare the present with the peaks."""
        now, reserved = self.allocated_bytes, self.allocator.reserved_bytes
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, reserved)
        if now > self.phase_peaks.get(self.phase, -1):
            self.phase_peaks[self.phase] = now
        if now >= self.peak.allocated_bytes:  # the last of equal peaks: only then has everything got its category
            self.peak.allocated_bytes = now
            self.peak.phase = self.phase
            self.peak.categories = {c: self._categories[c] for c in Category if self._categories[c]}
