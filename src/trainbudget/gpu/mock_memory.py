"""Memory stories of the mock: what the framework's allocator would hold after each step of each scenario.

The figures are those of a fine-tuning of a 1.3 B model on an 80 GB card: 14 GiB at rest, 42 GiB at the peak of a step.
Stories that end badly reach the card's limit at nine tenths of the run, so that a forecast has something to forecast.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainbudget.gpu.mock_card import CONTEXT_BYTES, GIB, MEMORY_LIMIT_BYTES, noise
from trainbudget.gpu.mock_training import StepNote

_REST_BYTES = 14.2 * GIB
_PEAK_BYTES = 41.6 * GIB
#: The cache rounds up and keeps what it once took.
_CACHE_RATIO = 1.03
#: What the allocator can take at most.
_ROOM_BYTES = MEMORY_LIMIT_BYTES - CONTEXT_BYTES
_END_OF_STORY = 0.9
#: What comes and goes beside the leak: without it a forecast would have no interval.
_LEAK_JITTER_BYTES = 24 * 2**20
#: Without sequence lengths the long batch comes here, this much longer than the others.
_LONG_AT, _LONG_RATIO = 0.6, 1.9
#: How many steps a cache that was emptied needs to fill again.
_RETRY_STEPS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The allocator after a step; all figures in bytes but the counts."""

    allocated: float = 0.0
    reserved: float = 0.0
    peak_allocated: float = 0.0
    peak_reserved: float = 0.0
    inactive_split: float = 0.0
    retries: int = 0


def after_step(scenario: str, before: Allocation, note: StepNote, progress: float, seed: int) -> Allocation:
    """The allocator after the step of `note`, at `progress` of the story."""
    shake = noise(seed, note.number)
    end = min(progress / _END_OF_STORY, 1.0)
    rest, peak = _REST_BYTES, _PEAK_BYTES * (1 + 0.004 * shake)
    if scenario == "leak":
        grown = (_ROOM_BYTES - _PEAK_BYTES) * end + _LEAK_JITTER_BYTES * shake
        rest, peak = rest + grown, peak + grown
    elif scenario == "long_batch":
        peak = rest + (peak - rest) * _length_ratio(before, note, progress)
    elif scenario == "fragmentation":
        return _fragmented(before, rest, peak, end, note)
    wanted = max(before.reserved, peak * _CACHE_RATIO)
    held = min(wanted, _ROOM_BYTES)
    return Allocation(
        allocated=rest,
        reserved=held,
        peak_allocated=min(peak, held),
        peak_reserved=held,
        inactive_split=0.02 * held,
        retries=before.retries + (1 if wanted > _ROOM_BYTES else 0),
    )


def _length_ratio(before: Allocation, note: StepNote, progress: float) -> float:
    if note.sequence_ratio is not None:
        return note.sequence_ratio
    first_time = before.peak_reserved < _REST_BYTES + (_PEAK_BYTES - _REST_BYTES) * _LONG_RATIO
    return _LONG_RATIO if progress >= _LONG_AT and first_time else 1.0


def _fragmented(before: Allocation, rest: float, peak: float, end: float, note: StepNote) -> Allocation:
    """What is used stays; what is held for it grows until the cache must be emptied, again and again."""
    held = peak * _CACHE_RATIO + (_ROOM_BYTES - peak * _CACHE_RATIO) * end
    full = end >= 1.0 and note.number % _RETRY_STEPS == 0
    after = Allocation(
        allocated=rest,
        reserved=held,
        peak_allocated=peak,
        peak_reserved=held,
        inactive_split=max(0.0, held - peak) + 0.02 * held,
        retries=before.retries + (1 if full else 0),
    )
    return replace(after, reserved=peak * _CACHE_RATIO) if full else after


def neighbour_bytes(scenario: str, progress: float) -> float | None:
    """What another process holds on the card, or None while there is none: it comes at three tenths and grows."""
    if scenario != "neighbour" or progress < 0.3:
        return None
    return 12.0 * GIB + 14.0 * GIB * min(1.0, (progress - 0.3) / 0.4)
