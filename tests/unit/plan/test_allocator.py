"""The simulated caching allocator: exact bytes for known sequences (c10/cuda/CUDACachingAllocator rules)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainbudget.plan.allocator import (
    GIB,
    MIB,
    AllocatorOptions,
    CachingAllocator,
    OutOfMemory,
    parse_allocator_options,
    segment_bytes,
)


@pytest.mark.parametrize(
    ("requested", "rounded"),
    [(0, 512), (1, 512), (512, 512), (513, 1024), (MIB, MIB), (MIB + 1, MIB + 512), (8_519_680, 8_519_680)],
)
def test_requests_are_rounded_to_512_bytes(requested: int, rounded: int) -> None:
    assert CachingAllocator().rounded(requested) == rounded


@pytest.mark.parametrize(
    ("size", "segment"),
    [
        (512, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 512, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (11 * MIB, 12 * MIB),
        (100 * MIB + 512, 102 * MIB),
    ],
)
def test_a_new_segment_has_the_size_of_its_class(size: int, segment: int) -> None:
    assert segment_bytes(size) == segment
    allocator = CachingAllocator()
    allocator.malloc(size)
    assert allocator.reserved_bytes == segment
    assert allocator.allocated_bytes == (12 * MIB if size == 11 * MIB else size)  # a rest of 1 MiB stays with its block


def test_small_requests_share_a_segment() -> None:
    allocator = CachingAllocator()
    for _ in range(4096):
        allocator.malloc(512)
    assert allocator.reserved_bytes == 2 * MIB
    allocator.malloc(1)
    assert allocator.reserved_bytes == 4 * MIB


def test_a_large_block_keeps_a_rest_of_at_most_one_mib() -> None:
    allocator = CachingAllocator()
    block = allocator.malloc(20 * MIB)
    allocator.free(block)
    kept = allocator.malloc(19 * MIB)
    assert kept.size == 20 * MIB  # a rest of 1 MiB is not split off
    allocator.free(kept)
    assert allocator.malloc(19 * MIB - 512).size == 19 * MIB - 512


def test_the_smallest_block_that_fits_is_taken() -> None:
    allocator = CachingAllocator()
    blocks = [allocator.malloc(n * MIB) for n in (64, 32, 48)]
    for block in blocks:
        allocator.free(block)
    assert allocator.malloc(40 * MIB) is blocks[2]


def test_freed_neighbours_merge() -> None:
    allocator = CachingAllocator()
    whole = allocator.malloc(90 * MIB)
    allocator.free(whole)
    parts = [allocator.malloc(30 * MIB) for _ in range(3)]
    assert allocator.reserved_bytes == 90 * MIB
    for index in (0, 2, 1):
        allocator.free(parts[index])
    assert allocator.malloc(90 * MIB).size == 90 * MIB
    assert allocator.reserved_bytes == 90 * MIB


def test_fragments_do_not_serve_a_larger_request() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.malloc(60 * MIB))
    first, _held = allocator.malloc(30 * MIB), allocator.malloc(30 * MIB)
    allocator.free(first)
    allocator.malloc(40 * MIB)
    assert allocator.reserved_bytes == 100 * MIB
    assert allocator.peak_allocated_bytes == 70 * MIB


def test_streams_do_not_share_blocks() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.malloc(30 * MIB, "all_gather"))
    allocator.malloc(30 * MIB)
    assert allocator.reserved_bytes == 60 * MIB


def test_expandable_segments_grow_instead_of_fragmenting() -> None:
    allocator = CachingAllocator(AllocatorOptions(expandable_segments=True))
    first = allocator.malloc(30 * MIB)
    assert allocator.reserved_bytes == 40 * MIB  # pages of 20 MiB
    allocator.malloc(10 * MIB)
    assert allocator.reserved_bytes == 40 * MIB
    allocator.free(first)
    allocator.malloc(31 * MIB)
    assert allocator.reserved_bytes == 80 * MIB
    allocator.malloc(512)
    assert allocator.reserved_bytes == 82 * MIB


def test_max_split_size_keeps_large_blocks_whole() -> None:
    limited = CachingAllocator(AllocatorOptions(max_split_size_bytes=100 * MIB))
    limited.free(limited.malloc(200 * MIB))
    limited.malloc(50 * MIB)
    assert limited.reserved_bytes == 250 * MIB
    free = CachingAllocator()
    free.free(free.malloc(200 * MIB))
    free.malloc(50 * MIB)
    assert free.reserved_bytes == 200 * MIB


def test_power_of_two_divisions_round_up() -> None:
    allocator = CachingAllocator(AllocatorOptions(roundup_power2_divisions=4))
    assert allocator.rounded(1200) == 1536  # below 512 x divisions the usual rounding stays
    assert allocator.rounded(4096) == 4096
    assert allocator.rounded(4097) == 5120


def test_a_full_device_first_gives_unused_segments_back() -> None:
    allocator = CachingAllocator(AllocatorOptions(capacity_bytes=100 * MIB))
    allocator.free(allocator.malloc(60 * MIB))
    allocator.malloc(80 * MIB)
    assert (allocator.reserved_bytes, allocator.retries) == (80 * MIB, 1)
    with pytest.raises(OutOfMemory) as caught:
        allocator.malloc(30 * MIB)
    assert caught.value.requested_bytes == 30 * MIB


def test_garbage_collection_releases_before_the_capacity_is_reached() -> None:
    allocator = CachingAllocator(AllocatorOptions(capacity_bytes=100 * MIB, garbage_collection_ratio=0.5))
    allocator.free(allocator.malloc(40 * MIB))
    allocator.malloc(44 * MIB)
    assert (allocator.reserved_bytes, allocator.retries) == (44 * MIB, 0)


def test_release_keeps_segments_in_use() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.malloc(60 * MIB))
    allocator.malloc(20 * MIB)
    allocator.free(allocator.malloc(50 * MIB))
    assert allocator.release_unused() == 50 * MIB
    assert allocator.reserved_bytes == 60 * MIB


def test_expandable_tail_can_be_released_and_grown_again() -> None:
    allocator = CachingAllocator(AllocatorOptions(expandable_segments=True))
    allocator.free(allocator.malloc(40 * MIB))
    assert allocator.release_unused() == 40 * MIB
    allocator.malloc(20 * MIB)
    assert allocator.reserved_bytes == 20 * MIB


def test_options_are_read_from_the_environment_value() -> None:
    options = parse_allocator_options("expandable_segments:True, max_split_size_mb:128,garbage_collection_threshold:0.8", 8 * GIB)
    assert options == AllocatorOptions(
        expandable_segments=True, max_split_size_bytes=128 * MIB, garbage_collection_ratio=0.8, capacity_bytes=8 * GIB
    )
    assert parse_allocator_options("") == AllocatorOptions()


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 30 * MIB), min_size=1, max_size=60),
    order=st.randoms(use_true_random=False),
    expandable=st.booleans(),
)
def test_nothing_is_lost_and_everything_comes_back(sizes: list[int], order: object, expandable: bool) -> None:
    """Allocated bytes are the live blocks' sum, never above reserved; when all is freed one request can have a whole segment
    again."""
    allocator = CachingAllocator(AllocatorOptions(expandable_segments=expandable))
    live = []
    for size in sizes:
        live.append(allocator.malloc(size))
        if order.random() < 0.4:  # type: ignore[attr-defined]
            allocator.free(live.pop(order.randrange(len(live))))  # type: ignore[attr-defined]
        assert allocator.allocated_bytes == sum(block.size for block in live) <= allocator.reserved_bytes
    for block in live:
        allocator.free(block)
    assert allocator.allocated_bytes == 0
    assert allocator.release_unused() == allocator.peak_reserved_bytes
    assert allocator.reserved_bytes == 0
