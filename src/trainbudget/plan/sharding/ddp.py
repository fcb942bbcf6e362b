"""DistributedDataParallel: its flat buckets beside the gradients (torch 2.13, ``reducer.cpp``).

Buckets hold one copy of every trainable gradient from construction on, whatever ``bucket_cap_mb`` (it only cuts them up). With
``gradient_as_bucket_view`` a gradient *is* its bucket once it has been reduced; micro-steps under ``no_sync`` keep ordinary
gradients.
"""

from __future__ import annotations

from trainbudget.plan.allocator import MIB
from trainbudget.plan.tracing.trace import Parameter
from trainbudget.plan.train_spec import TrainSpec

FIRST_BUCKET_BYTES = MIB


def bucket_sizes(parameters: list[Parameter], spec: TrainSpec) -> list[int]:
    """Bytes of each flat bucket: the first is closed at 1 MiB, the others at ``bucket_cap_mb`` (25), in reverse order of
    parameters."""
    cap = int(float(spec.strategy_options.get("bucket_cap_mb", 25)) * MIB)
    sizes: list[int] = []
    filled, limit = 0, FIRST_BUCKET_BYTES
    for p in reversed([p for p in parameters if p.trainable]):
        filled += p.elements * p.item_bytes
        if filled >= limit:
            sizes.append(filled)
            filled, limit = 0, cap
    return [*sizes, filled] if filled else sizes


def gradients_are_views(spec: TrainSpec) -> bool:
    """Whether reduced gradients live in the buckets."""
    return bool(spec.strategy_options.get("gradient_as_bucket_view", False))
