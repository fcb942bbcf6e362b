"""torch's caching allocator and device identities, only where torch is already loaded and CUDA already up.

Reading allocator statistics takes torch's own lock and no driver call. Nothing here imports torch or initialises CUDA.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from trainbudget.events import Allocator


def torch_cuda() -> Any | None:
    """`torch.cuda` when the process has loaded torch and initialised CUDA, else None."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return None
    return cuda


def torch_uuids(cuda: Any) -> tuple[str, ...]:
    """UUIDs of the devices in torch's order, as NVML writes them (`GPU-...`, `MIG-...`); empty where torch cannot tell."""
    out = []
    for ordinal in range(cuda.device_count()):
        uuid = getattr(cuda.get_device_properties(ordinal), "uuid", None)
        if uuid is None:
            return ()
        text = str(uuid)
        out.append(text if text.startswith(("GPU-", "MIG-")) else f"GPU-{text}")
    return tuple(out)


def used_ordinals(cuda: Any) -> tuple[int, ...]:
    """Ordinals on which this process holds memory through torch's allocator."""
    return tuple(o for o in range(cuda.device_count()) if cuda.memory_reserved(o) > 0)


def allocator_fact(cuda: Any, ordinal: int, gpu: int, *, t_s: float, at: str, step: int | None) -> Allocator:
    """One device's allocator as torch counts it; peaks are since the process started (torch's own counters, not reset)."""
    stats = cuda.memory_stats(ordinal)
    return Allocator(
        t_s=t_s,
        gpu=gpu,
        at=at,
        step=step,
        allocated_bytes=_number(stats, "allocated_bytes.all.current"),
        reserved_bytes=_number(stats, "reserved_bytes.all.current"),
        active_bytes=_number(stats, "active_bytes.all.current"),
        inactive_split_bytes=_number(stats, "inactive_split_bytes.all.current"),
        peak_allocated_bytes=_number(stats, "allocated_bytes.all.peak"),
        peak_reserved_bytes=_number(stats, "reserved_bytes.all.peak"),
        peak_since="process",
        alloc_retries=_number(stats, "num_alloc_retries"),
        ooms=_number(stats, "num_ooms"),
    )


def allocator_facts(cuda: Any, visible: Sequence[int], *, t_s: float, at: str, step: int | None) -> list[Allocator]:
    """The allocators of all devices on which this process holds memory; `visible` maps torch's ordinals to ours."""
    return [
        allocator_fact(cuda, ordinal, visible[ordinal], t_s=t_s, at=at, step=step)
        for ordinal in used_ordinals(cuda)
        if ordinal < len(visible)
    ]


def _number(stats: Any, name: str) -> float | None:
    value = stats.get(name)
    return None if value is None else float(value)
