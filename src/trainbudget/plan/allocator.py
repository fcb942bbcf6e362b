"""A simulator of PyTorch's CUDA caching allocator: which bytes a sequence of mallocs and frees allocates and reserves.

Sizes and rules are those of ``c10/cuda/CUDACachingAllocator`` (torch 2.4 to 2.13): requests are rounded to 512 B; up to 1 MiB
they come from 2 MiB segments, below 10 MiB from 20 MiB segments, above from a segment of their own rounded to 2 MiB; the
smallest free block that fits is taken, split when enough remains, and merged with its free neighbours when it is freed. Blocks
never move between streams. ``PYTORCH_CUDA_ALLOC_CONF`` options are fields of :class:`AllocatorOptions`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

BLOCK_BYTES = 512
SMALL_LIMIT_BYTES = MIB
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB
LARGE_REQUEST_BYTES = 10 * MIB
ROUND_LARGE_BYTES = 2 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorOptions:
    """The keys of ``PYTORCH_CUDA_ALLOC_CONF`` that change how much is reserved.

    Attributes:
        expandable_segments: one growing segment a stream and pool instead of many.
        max_split_size_bytes: larger free blocks are not split; None as in torch, no limit.
        garbage_collection_ratio: reclaim unused segments above this share of the capacity; None = off.
        roundup_power2_divisions: round requests up to a power of two cut in so many parts; None = off.
        capacity_bytes: what the process may reserve; None = unlimited. A request beyond it first releases unused segments, as
            torch does.
    """

    expandable_segments: bool = False
    max_split_size_bytes: int | None = None
    garbage_collection_ratio: float | None = None
    roundup_power2_divisions: int | None = None
    capacity_bytes: int | None = None


class OutOfMemory(Exception):
    """The simulated device cannot serve a request even after releasing every unused segment."""

    def __init__(self, requested_bytes: int, allocated_bytes: int, reserved_bytes: int) -> None:
        super().__init__(f"{requested_bytes} B requested with {reserved_bytes} B reserved")
        self.requested_bytes = requested_bytes
        self.allocated_bytes = allocated_bytes
        self.reserved_bytes = reserved_bytes


class Block:
    """A piece of a segment; neighbours inside the segment are linked."""

    __slots__ = ("free", "next", "order", "pool", "prev", "size")

    def __init__(self, size: int, pool: tuple[str, bool], prev: Block | None = None, next_: Block | None = None) -> None:
        self.size = size
        self.pool = pool
        self.prev = prev
        self.next = next_
        self.free = False
        self.order = 0


class CachingAllocator:
    """Serves ``malloc`` and ``free`` and counts allocated and reserved bytes and their peaks."""

    def __init__(self, options: AllocatorOptions | None = None) -> None:
        self.options = options or AllocatorOptions()
        self.allocated_bytes = 0
        self.reserved_bytes = 0
        self.peak_allocated_bytes = 0
        self.peak_reserved_bytes = 0
        self.retries = 0  # how often unused segments had to be released to serve a request
        self._serial = 0
        self._free: dict[tuple[str, bool], list[tuple[int, int, Block]]] = {}
        self._tail: dict[tuple[str, bool], Block] = {}

    def malloc(self, requested_bytes: int, stream: str = "main") -> Block:
        """The block that serves ``requested_bytes``.

        Raises:
            OutOfMemory: the capacity does not allow it.
        """
        size = self.rounded(requested_bytes)
        pool = (stream, size <= SMALL_LIMIT_BYTES)
        free = self._free.setdefault(pool, [])
        block = self._best_fit(free, size) or self._grow(pool, size)
        self._split(block, size)
        block.free = False
        self.allocated_bytes += block.size
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        return block

    def free(self, block: Block) -> None:
        """Return a block; it merges with free neighbours and stays reserved."""
        self.allocated_bytes -= block.size
        following, before = block.next, block.prev
        if following is not None and following.free:
            self._take(following)
            self._absorb(block, following)
        if before is not None and before.free:
            self._take(before)
            self._absorb(before, block)
            block = before
        self._release(block)

    def rounded(self, requested_bytes: int) -> int:
        """Bytes a request occupies."""
        divisions = self.options.roundup_power2_divisions
        if divisions and divisions > 1 and requested_bytes > BLOCK_BYTES * divisions:
            power = 1 << (requested_bytes.bit_length() - 1)
            if power == requested_bytes:
                return requested_bytes
            step = power // divisions
            return -(-requested_bytes // step) * step
        return max(BLOCK_BYTES, -(-requested_bytes // BLOCK_BYTES) * BLOCK_BYTES)

    def release_unused(self) -> int:
        """Give every unused segment back (``torch.cuda.empty_cache``); returns the bytes released."""
        released = 0
        for pool, free in self._free.items():
            kept = []
            for entry in free:
                block = entry[2]
                whole = block.prev is None and block.next is None
                tail = self._tail.get(pool) is block
                if not whole and not tail:
                    kept.append(entry)
                    continue
                released += block.size
                if tail:
                    self._drop_tail(pool, block)
            free[:] = kept
        self.reserved_bytes -= released
        return released

    def _best_fit(self, free: list[tuple[int, int, Block]], size: int) -> Block | None:
        index = bisect_left(free, (size, -1))
        if index == len(free):
            return None
        found = free[index][0]
        limit = self.options.max_split_size_bytes
        if limit is not None:
            if size < limit <= found:
                return None  # an oversized block is kept for an oversized request
            if size >= limit and found >= size + LARGE_SEGMENT_BYTES:
                return None
        block = free.pop(index)[2]
        block.free = False
        return block

    def _grow(self, pool: tuple[str, bool], size: int) -> Block:
        if self.options.expandable_segments:
            return self._grow_tail(pool, size)
        segment = segment_bytes(size)
        self._make_room(segment)
        self._reserve(segment, size)
        return Block(segment, pool)

    def _grow_tail(self, pool: tuple[str, bool], size: int) -> Block:
        page = SMALL_SEGMENT_BYTES if pool[1] else LARGE_SEGMENT_BYTES
        self._make_room(page * -(-(size - self._free_tail_bytes(pool)) // page))
        missing = page * -(-(size - self._free_tail_bytes(pool)) // page)  # making room may have released the tail
        self._reserve(missing, size)
        tail = self._tail.get(pool)
        if tail is not None and tail.free:
            self._take(tail)
            tail.size += missing
            tail.free = False
            return tail
        block = Block(missing, pool, prev=tail)
        if tail is not None:
            tail.next = block
        self._tail[pool] = block
        return block

    def _free_tail_bytes(self, pool: tuple[str, bool]) -> int:
        tail = self._tail.get(pool)
        return tail.size if tail is not None and tail.free else 0

    def _make_room(self, segment: int) -> None:
        capacity, ratio = self.options.capacity_bytes, self.options.garbage_collection_ratio
        if capacity is None:
            return
        if ratio is not None and self.reserved_bytes + segment > ratio * capacity:
            self.release_unused()
        if self.reserved_bytes + segment > capacity:
            self.retries += 1
            self.release_unused()

    def _reserve(self, segment: int, size: int) -> None:
        capacity = self.options.capacity_bytes
        if capacity is not None and self.reserved_bytes + segment > capacity:
            raise OutOfMemory(size, self.allocated_bytes, self.reserved_bytes)
        self.reserved_bytes += segment
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)

    def _split(self, block: Block, size: int) -> None:
        remaining = block.size - size
        limit = self.options.max_split_size_bytes
        if block.pool[1] or self.options.expandable_segments:
            if remaining < BLOCK_BYTES:
                return
        elif remaining <= SMALL_LIMIT_BYTES or (limit is not None and size >= limit):
            return
        rest = Block(remaining, block.pool, prev=block, next_=block.next)
        if block.next is not None:
            block.next.prev = rest
        elif self._tail.get(block.pool) is block:
            self._tail[block.pool] = rest
        block.next = rest
        block.size = size
        self._release(rest)

    def _absorb(self, block: Block, following: Block) -> None:
        block.size += following.size
        block.next = following.next
        if following.next is not None:
            following.next.prev = block
        elif self._tail.get(block.pool) is following:
            self._tail[block.pool] = block

    def _drop_tail(self, pool: tuple[str, bool], block: Block) -> None:
        if block.prev is None:
            del self._tail[pool]
        else:
            block.prev.next = None
            self._tail[pool] = block.prev

    def _release(self, block: Block) -> None:
        self._serial += 1
        block.order = self._serial
        block.free = True
        insort(self._free.setdefault(block.pool, []), (block.size, block.order, block))

    def _take(self, block: Block) -> None:
        free = self._free[block.pool]
        free.pop(bisect_left(free, (block.size, block.order)))


def segment_bytes(size: int) -> int:
    """Bytes of the new segment that serves a rounded request when no free block fits."""
    if size <= SMALL_LIMIT_BYTES:
        return SMALL_SEGMENT_BYTES
    if size < LARGE_REQUEST_BYTES:
        return LARGE_SEGMENT_BYTES
    return -(-size // ROUND_LARGE_BYTES) * ROUND_LARGE_BYTES


def parse_allocator_options(text: str, capacity_bytes: int | None = None) -> AllocatorOptions:
    """Options from a ``PYTORCH_CUDA_ALLOC_CONF`` (or ``PYTORCH_ALLOC_CONF``) value; keys that do not change sizes are ignored."""
    values = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        key, _, value = part.partition(":")
        values[key.strip()] = value.strip()
    split_mib = values.get("max_split_size_mb")
    collect = values.get("garbage_collection_threshold")
    divisions = values.get("roundup_power2_divisions", "")
    return AllocatorOptions(
        expandable_segments=values.get("expandable_segments", "").lower() == "true",
        max_split_size_bytes=int(split_mib) * MIB if split_mib else None,
        garbage_collection_ratio=float(collect) if collect else None,
        roundup_power2_divisions=int(divisions) if divisions.isdigit() else None,
        capacity_bytes=capacity_bytes,
    )
