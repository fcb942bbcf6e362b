"""The longest batches of a data set that is tokenised already: which one needs most memory, and at which step it comes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from trainbudget.plan.script.capture import shape_of

#: More examples than this, or a data set that takes longer to look through, is not looked through.
MOST_EXAMPLES = 200_000
MOST_SECONDS = 30.0
#: How many of the longest batches are told.
TOLD = 5
#: Samplers that give the same order in another process: one behind the other, or seeded by themselves (accelerate).
_KNOWN_ORDER = ("SequentialSampler", "SeedableRandomSampler")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """What was found.

    Attributes:
        batch: the batch with most tokens, collated.
        long_batches: (optimizer step, tokens of the micro-batch) of the largest, largest first; the step is None where the
            order is drawn anew in each process.
        token_ratio: mean over longest, in tokens.
    """

    batch: Any
    long_batches: list[tuple[int | None, int]] = field(default_factory=list)
    token_ratio: float = 1.0


def scan(loader: Any, first: Any, *, batches_per_step: int) -> Scan:
    """Look through the first epoch. Where lengths cannot be read, the first batch stands for all.

    Args:
        first: the loader's first batch.
        batches_per_step: micro-batches of an optimizer step, over all ranks (they take batches in turn).
    """
    try:
        return _scan(loader, first, batches_per_step) or Scan(batch=first)
    except (TypeError, KeyError, IndexError, AttributeError, ValueError, RuntimeError):
        return Scan(batch=first)


def _scan(loader: Any, first: Any, batches_per_step: int) -> Scan | None:
    data: Any = getattr(loader, "dataset", None)
    sampler, collate = getattr(loader, "batch_sampler", None), getattr(loader, "collate_fn", None)
    if sampler is None or collate is None or shape_of(first)[1] is None:
        return None
    lengths = _lengths(data)
    if lengths is None:
        return None
    picks = [list(indices) for indices in sampler]
    sizes = [max(lengths[i] for i in p) * len(p) for p in picks if p]
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])[:TOLD]
    chosen = collate([data[i] for i in picks[order[0]]])
    if (shape_of(chosen)[1] or 0) < (shape_of(first)[1] or 0):
        chosen = first
    if _order_is_known(sampler):
        told: list[tuple[int | None, int]] = [(i // batches_per_step + 1, sizes[i]) for i in order]
    else:
        told = [(None, sizes[order[0]])]
    return Scan(batch=chosen, long_batches=told, token_ratio=sum(sizes) / len(sizes) / sizes[order[0]])


def _order_is_known(batch_sampler: Any) -> bool:
    """Whether the run gets its batches in the order that was seen here."""
    sampler = getattr(batch_sampler, "sampler", None)
    if sampler is not None and type(batch_sampler) is torch.utils.data.BatchSampler:
        own_seed = isinstance(sampler, torch.utils.data.RandomSampler) and sampler.generator is not None
        return type(sampler).__name__ in _KNOWN_ORDER or own_seed
    # Somebody's own: what is the same twice is not drawn by chance.
    return [list(p) for p in batch_sampler] == [list(p) for p in batch_sampler]


def _lengths(data: Any) -> list[int] | None:
    """Tokens of every example of a map-style, tokenised data set, or None."""
    if data is None or not hasattr(data, "__len__") or not 0 < len(data) <= MOST_EXAMPLES:
        return None
    columns = getattr(data, "column_names", None)
    if columns is not None and not isinstance(columns, Mapping):
        return [len(x) for x in data["input_ids"]] if "input_ids" in columns else None
    tokens = _tokens_of(data[0])
    if tokens is None:
        return None
    until, out = time.monotonic() + MOST_SECONDS, []
    for i in range(len(data)):
        out.append(len(tokens(data[i])))
        if time.monotonic() > until:
            return None
    return out


def _tokens_of(example: Any) -> Callable[[Any], Sequence[int]] | None:
    """How to find the token ids in an example: under `input_ids`, or the first part of it; None where there are none."""
    if isinstance(example, Mapping):
        return (lambda e: e["input_ids"]) if "input_ids" in example else None
    if isinstance(example, (tuple, list)) and example and _is_ids(example[0]):
        return lambda e: e[0]
    return (lambda e: e) if _is_ids(example) else None


def _is_ids(value: Any) -> bool:
    """A row of whole numbers."""
    if isinstance(value, torch.Tensor):
        return value.ndim == 1 and not value.is_floating_point() and not value.is_complex()
    return isinstance(value, list) and bool(value) and all(type(v) is int for v in value[:8])
