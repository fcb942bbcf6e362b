"""Which devices are ours: from the framework's device UUIDs, else from the variables that CUDA itself reads.

Nothing is guessed: what cannot be known is said in `Mapping.ambiguous`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trainbudget.gpu.protocol import GpuIdentity
from trainbudget.gpu.visible import Visible, as_cuda_reads, as_the_framework_says


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapping:
    """The outcome, as indices of the backend.

    Attributes:
        owned: devices that this process trains on.
        visible: devices that this process can see, in the framework's order where that is known; owned ones included.
        spare: visible devices that no process of the job on this machine trains on, as far as that is certain.
        ambiguous: one sentence when `owned` or `visible` could not be decided; they then hold only what is certain.
        remark: one sentence about a value that was understood but is hardly what its author meant.
    """

    owned: tuple[int, ...] = ()
    visible: tuple[int, ...] = ()
    spare: tuple[int, ...] = ()
    ambiguous: str | None = None
    remark: str | None = None


def map_devices(
    gpus: Sequence[GpuIdentity],
    *,
    visible: str | None,
    order: str | None,
    torch_uuids: Sequence[str] | None,
    local_rank: int | None,
    local_world_size: int | None,
    used: Sequence[int] | None = None,
) -> Mapping:
    """The devices of this process among `gpus`.

    Args:
        gpus: every device the backend shows.
        visible: `CUDA_VISIBLE_DEVICES`; None = not set, which means all.
        order: `CUDA_DEVICE_ORDER`; None = not set, which means fastest first.
        torch_uuids: UUIDs of the devices that the framework sees, in its own order, with or without `GPU-`; decides
            instead of the variables. None or empty = it cannot tell.
        local_rank: this process's place on its machine.
        local_world_size: processes of the job on this machine.
        used: the framework's ordinals on which this process holds memory. None or empty = not known (yet): then a
            process alone owns the framework's default device, the first one.
    """
    seen = as_cuda_reads(gpus, visible, order)
    if torch_uuids:
        seen = as_the_framework_says(gpus, torch_uuids, seen)
    found = Mapping(visible=seen.indices, ambiguous=seen.ambiguous, remark=seen.remark)
    if seen.ambiguous or not seen.indices:
        return found
    processes = max(local_world_size or 1, 1)
    if used and _is_ours(used, seen, processes):
        if not all(0 <= ordinal < len(seen.indices) for ordinal in used):
            return replace(found, ambiguous=f"the framework uses device {max(used)} of {len(seen.indices)}")
        found = replace(found, owned=tuple(dict.fromkeys(seen.indices[ordinal] for ordinal in used)))
    else:
        found = _by_rank(found, local_rank, processes)
    return replace(found, spare=_spare(found, processes))


def _is_ours(used: Sequence[int], seen: Visible, processes: int) -> bool:
    """Whether what a process holds memory on is what it trains on.

    Among several processes a few hundred MiB on a sibling's device are a stray context, not a second device of ours:
    several count only where there are enough for every process to use as many.
    """
    return processes == 1 or len(used) == 1 or len(seen.indices) >= processes * len(used)


def _by_rank(found: Mapping, local_rank: int | None, processes: int) -> Mapping:
    if processes == 1 or len(found.visible) == 1:
        # One visible device in a job of several processes: the launcher has given each rank its own mask.
        return replace(found, owned=found.visible[:1])
    if local_rank is None:
        return replace(found, ambiguous="several processes share this machine and the local rank is not known")
    if 0 <= local_rank < len(found.visible):
        return replace(found, owned=(found.visible[local_rank],))
    count = len(found.visible)
    return replace(found, ambiguous=f"local rank {local_rank} has no device of its own among the {count} visible ones")


def _spare(found: Mapping, processes: int) -> tuple[int, ...]:
    """What is left when each process of this machine has taken as many devices as this one, in order of their ranks."""
    if found.ambiguous or not found.owned:
        return ()
    taken = 0 if processes == 1 else processes * len(found.owned)
    return tuple(index for index in found.visible[taken:] if index not in found.owned)
