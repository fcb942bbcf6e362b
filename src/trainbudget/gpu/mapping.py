"""Which devices are ours: from the framework's device UUIDs, else from the variables that CUDA itself reads.

The rules for `CUDA_VISIBLE_DEVICES` are those of the CUDA programming guide ("CUDA Environment Variables") and of the MIG
user guide ("CUDA Visible Devices"); where those are silent, what `torch.cuda` does with the same value. Positions in the
result are the framework's ordinals. What cannot be known is said in `ambiguous` and never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trainbudget.gpu.protocol import GpuIdentity

_OLD_MIG_NAME = re.compile(r"^MIG-(GPU-[0-9a-fA-F-]+)/(\d+)/(\d+)$")
_LEADING_NUMBER = re.compile(r"^\s*([+-]?\d+)")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Visible:
    """Devices in the framework's order; `ordered` is false when only the set is certain."""

    indices: tuple[int, ...] = ()
    ordered: bool = True
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
) -> Mapping:
    """The devices of this process among `gpus`.

    Args:
        gpus: every device the backend shows.
        visible: `CUDA_VISIBLE_DEVICES`; None = not set, which means all.
        order: `CUDA_DEVICE_ORDER`; None = not set, which means fastest first.
        torch_uuids: UUIDs of the devices that the framework says this process uses, with or without `GPU-`; decides
            alone when given. An empty sequence says that it uses none.
        local_rank: this process's place on its machine.
        local_world_size: processes of the job on this machine.
    """
    seen = _visible_devices(gpus, visible, order)
    if torch_uuids is not None:
        found = _from_framework(gpus, torch_uuids, seen)
    else:
        found = _from_ranks(seen, local_rank, local_world_size)
    return replace(found, spare=_spare(found, seen, max(local_world_size or 1, 1)))


def _spare(found: Mapping, seen: _Visible, processes: int) -> tuple[int, ...]:
    """What is left when each process of this machine has taken its own."""
    if found.ambiguous or not found.owned:
        return ()
    if processes == 1:
        return tuple(index for index in found.visible if index not in found.owned)
    if len(found.owned) > 1 or not seen.ordered or len(found.visible) <= processes:
        return ()
    return tuple(index for index in found.visible[processes:] if index not in found.owned)


def _from_ranks(seen: _Visible, local_rank: int | None, local_world_size: int | None) -> Mapping:
    if not seen.indices:
        return Mapping(ambiguous=seen.ambiguous, remark=seen.remark)
    found = Mapping(visible=seen.indices, ambiguous=seen.ambiguous, remark=seen.remark)
    if len(seen.indices) == 1:
        return replace(found, owned=seen.indices)
    if seen.ambiguous or not seen.ordered:
        return found
    if local_world_size is None or local_world_size <= 1:
        # The framework's default device; several come as `torch_uuids` once memory is held on them.
        return replace(found, owned=seen.indices[:1])
    if local_rank is None:
        return replace(found, ambiguous="several processes share this machine and the local rank is not known")
    if 0 <= local_rank < len(seen.indices):
        return replace(found, owned=(seen.indices[local_rank],))
    return replace(
        found, ambiguous=f"local rank {local_rank} has no device of its own among the {len(seen.indices)} visible ones"
    )


def _from_framework(gpus: Sequence[GpuIdentity], uuids: Sequence[str], seen: _Visible) -> Mapping:
    by_uuid = {_bare(gpu.uuid): gpu.index for gpu in gpus if gpu.uuid and gpu.kind != "mig_parent"}
    parents = {_bare(gpu.uuid): gpu for gpu in gpus if gpu.uuid and gpu.kind == "mig_parent"}
    owned: list[int] = []
    missing: list[str] = []
    for uuid in uuids:
        index = by_uuid.get(_bare(uuid))
        if index is None and _bare(uuid) in parents:
            index = _slice_meant(gpus, parents[_bare(uuid)], seen)
        if index is None:
            missing.append(uuid)
        elif index not in owned:
            owned.append(index)
    others = tuple(index for index in seen.indices if index not in owned)
    visible = seen.indices if set(owned) <= set(seen.indices) else (*owned, *others)
    ambiguous = f"the framework uses {', '.join(missing)}, which the driver does not show" if missing else None
    return Mapping(owned=tuple(owned), visible=visible, ambiguous=ambiguous, remark=seen.remark)


def _slice_meant(gpus: Sequence[GpuIdentity], parent: GpuIdentity, seen: _Visible) -> int | None:
    """The slice behind a whole card's UUID (some CUDA versions give no other), where only one can be meant."""
    slices = _slices_of(gpus, parent)
    named = [index for index in slices if index in seen.indices] or slices
    return named[0] if len(named) == 1 else None


def _bare(uuid: str | None) -> str:
    return (uuid or "").strip().lower().removeprefix("gpu-").removeprefix("mig-")


def _slices_of(gpus: Sequence[GpuIdentity], parent: GpuIdentity) -> tuple[int, ...]:
    return tuple(gpu.index for gpu in gpus if gpu.kind == "mig" and gpu.parent_uuid == parent.uuid)


def _visible_devices(gpus: Sequence[GpuIdentity], text: str | None, order: str | None) -> _Visible:
    cards = sorted((gpu for gpu in gpus if gpu.kind != "mig"), key=lambda gpu: gpu.ordinal)
    ordered = len({card.name for card in cards}) <= 1 or (order or "").strip().upper() == "PCI_BUS_ID"
    if text is None:
        return _all_devices(gpus, cards, ordered)
    entries = text.strip().split(",")
    if entries[0].startswith("MIG-"):
        return _mig_device(gpus, entries)
    if entries[0].startswith("GPU-"):
        return _by_uuid(gpus, cards, entries)
    return _by_ordinal(gpus, cards, entries, ordered)


def _all_devices(gpus: Sequence[GpuIdentity], cards: Sequence[GpuIdentity], ordered: bool) -> _Visible:
    slices = tuple(gpu.index for gpu in gpus if gpu.kind == "mig")
    whole = tuple(card.index for card in cards if card.kind == "gpu")
    if any(card.kind == "mig_parent" for card in cards):
        if len(slices) == 1 and not whole:
            return _Visible(indices=slices)
        # CUDA shows a process one slice only (MIG user guide); which one is nowhere promised.
        return _Visible(ambiguous="MIG is on and CUDA_VISIBLE_DEVICES names no slice")
    return _Visible(indices=whole, ordered=ordered, ambiguous=None if ordered else _UNLIKE_CARDS)


_UNLIKE_CARDS = "the cards differ and CUDA_DEVICE_ORDER is not PCI_BUS_ID, so CUDA's numbers are not the driver's"


def _by_ordinal(gpus: Sequence[GpuIdentity], cards: Sequence[GpuIdentity], entries: Sequence[str], ordered: bool) -> _Visible:
    numbers: list[int] = []
    remark: str | None = None
    for entry in entries:
        number = _leading_number(entry)
        if number is None or not 0 <= number < len(cards):
            # CUDA shows only the devices before the first invalid entry; "" and "-1" are the usual ways to ask for none.
            if entry.strip() not in ("", "-1"):
                remark = f"CUDA_VISIBLE_DEVICES ends at {entry.strip()!r}, which is not a device here"
            break
        if number in numbers:
            return _Visible(remark=f"CUDA_VISIBLE_DEVICES repeats {number}: CUDA shows no device then")
        if entry.strip() != str(number):
            remark = f"CUDA_VISIBLE_DEVICES: {entry.strip()!r} is read as {number}"
        numbers.append(number)
    if not numbers:
        return _Visible(remark=remark)
    if not ordered:
        # All of them are a certain set in an uncertain order; a part is not even that.
        everything = tuple(card.index for card in cards) if len(numbers) == len(cards) else ()
        return _Visible(indices=everything, ordered=False, ambiguous=_UNLIKE_CARDS, remark=remark)
    return _of_cards(gpus, [cards[number] for number in numbers], remark)


def _by_uuid(gpus: Sequence[GpuIdentity], cards: Sequence[GpuIdentity], entries: Sequence[str]) -> _Visible:
    chosen: list[GpuIdentity] = []
    remark: str | None = None
    for entry in entries:
        name = entry.strip()
        matches = [card for card in cards if name.startswith("GPU-") and len(name) > 4 and _starts(card.uuid, name)]
        if len(matches) != 1:
            reason = "fits several devices" if matches else "is not a device here"
            remark = f"CUDA_VISIBLE_DEVICES ends at {name!r}, which {reason}"
            break
        if matches[0] in chosen:
            return _Visible(remark=f"CUDA_VISIBLE_DEVICES repeats {name}: CUDA shows no device then")
        chosen.append(matches[0])
    return _of_cards(gpus, chosen, remark)


def _of_cards(gpus: Sequence[GpuIdentity], chosen: Sequence[GpuIdentity], remark: str | None) -> _Visible:
    """The devices that a choice of cards stands for: a card with MIG on stands for its only slice."""
    indices: list[int] = []
    for card in chosen:
        if card.kind == "gpu":
            indices.append(card.index)
            continue
        slices = _slices_of(gpus, card)
        if len(slices) != 1:
            return _Visible(ambiguous=f"{card.uuid} is split into {len(slices)} MIG slices and none is named", remark=remark)
        indices.append(slices[0])
    return _Visible(indices=tuple(indices), remark=remark)


def _mig_device(gpus: Sequence[GpuIdentity], entries: Sequence[str]) -> _Visible:
    name = entries[0].strip()
    old = _OLD_MIG_NAME.match(name)
    if old:
        card, gpu_instance, compute_instance = old[1], int(old[2]), int(old[3])
        found = [
            gpu
            for gpu in gpus
            if gpu.kind == "mig"
            and _bare(gpu.parent_uuid) == _bare(card)
            and (gpu.gpu_instance, gpu.compute_instance) == (gpu_instance, compute_instance)
        ]
    else:
        found = [gpu for gpu in gpus if gpu.kind == "mig" and len(name) > 4 and _starts(gpu.uuid, name)]
    if len(found) != 1:
        return _Visible(ambiguous=f"CUDA_VISIBLE_DEVICES names {name}, which the driver does not show as one MIG slice")
    remark = f"CUDA shows a process one MIG slice only: {name}" if len(entries) > 1 else None
    return _Visible(indices=(found[0].index,), remark=remark)


def _starts(uuid: str | None, prefix: str) -> bool:
    return (uuid or "").lower().startswith(prefix.lower())


def _leading_number(entry: str) -> int | None:
    """The number an entry starts with, as C's strtoul reads it: `1gpu2` is 1, `0-2` is 0, `gpu` is none."""
    match = _LEADING_NUMBER.match(entry)
    return int(match[1]) if match else None
