"""Which devices the framework sees, in its own order: as it says itself, else as CUDA reads its variables.

The rules for `CUDA_VISIBLE_DEVICES` are those of the CUDA programming guide ("CUDA Environment Variables") and of the MIG
user guide ("CUDA Visible Devices"); where those are silent, what `torch.cuda` does with the same value.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from trainbudget.gpu.protocol import GpuIdentity

_OLD_MIG_NAME = re.compile(r"^MIG-(GPU-[0-9a-fA-F-]+)/(\d+)/(\d+)$")
_LEADING_NUMBER = re.compile(r"^\s*([+-]?\d+)")
_UNLIKE_CARDS = "the cards differ and CUDA_DEVICE_ORDER is not PCI_BUS_ID, so CUDA's numbers are not the driver's"


@dataclass(frozen=True, slots=True, kw_only=True)
class Visible:
    """Indices of the backend; a place in `indices` is the framework's ordinal.

    Attributes:
        ambiguous: why this is not the whole truth, in one sentence; `indices` is then at most a set of visible devices.
        remark: a value that was understood but is hardly what its author meant, in one sentence.
    """

    indices: tuple[int, ...] = ()
    ambiguous: str | None = None
    remark: str | None = None


def as_the_framework_says(gpus: Sequence[GpuIdentity], uuids: Sequence[str], named: Visible) -> Visible:
    """The devices of the framework's UUIDs; `named` (by the variables) tells slices of one card apart."""
    by_uuid = {_bare(gpu.uuid): gpu.index for gpu in gpus if gpu.uuid and gpu.kind != "mig_parent"}
    parents = {_bare(gpu.uuid): gpu for gpu in gpus if gpu.uuid and gpu.kind == "mig_parent"}
    indices: list[int] = []
    missing: list[str] = []
    for uuid in uuids:
        index = by_uuid.get(_bare(uuid))
        if index is None and _bare(uuid) in parents:
            index = _slice_meant(gpus, parents[_bare(uuid)], named)
        if index is None:
            missing.append(uuid)
        elif index not in indices:
            indices.append(index)
    ambiguous = f"the framework uses {', '.join(missing)}, which the driver does not show" if missing else None
    return Visible(indices=tuple(indices), ambiguous=ambiguous, remark=named.remark)


def _slice_meant(gpus: Sequence[GpuIdentity], parent: GpuIdentity, named: Visible) -> int | None:
    """The slice behind a whole card's UUID (some CUDA versions give no other), where only one can be meant."""
    slices = _slices_of(gpus, parent)
    meant = [index for index in slices if index in named.indices] or slices
    return meant[0] if len(meant) == 1 else None


def _bare(uuid: str | None) -> str:
    return (uuid or "").strip().lower().removeprefix("gpu-").removeprefix("mig-")


def _slices_of(gpus: Sequence[GpuIdentity], parent: GpuIdentity) -> tuple[int, ...]:
    return tuple(gpu.index for gpu in gpus if gpu.kind == "mig" and gpu.parent_uuid == parent.uuid)


def as_cuda_reads(gpus: Sequence[GpuIdentity], text: str | None, order: str | None) -> Visible:
    """The devices of `CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER`, each None where it is not set."""
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


def _all_devices(gpus: Sequence[GpuIdentity], cards: Sequence[GpuIdentity], ordered: bool) -> Visible:
    slices = tuple(gpu.index for gpu in gpus if gpu.kind == "mig")
    whole = tuple(card.index for card in cards if card.kind == "gpu")
    if any(card.kind == "mig_parent" for card in cards):
        if len(slices) == 1 and not whole:
            return Visible(indices=slices)
        # CUDA shows a process one slice only (MIG user guide); which one is nowhere promised.
        return Visible(ambiguous="MIG is on and CUDA_VISIBLE_DEVICES names no slice")
    return Visible(indices=whole, ambiguous=None if ordered else _UNLIKE_CARDS)


def _by_ordinal(gpus: Sequence[GpuIdentity], cards: Sequence[GpuIdentity], entries: Sequence[str], ordered: bool) -> Visible:
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
            return Visible(remark=f"CUDA_VISIBLE_DEVICES repeats {number}: CUDA shows no device then")
        if entry.strip() != str(number):
            remark = f"CUDA_VISIBLE_DEVICES: {entry.strip()!r} is read as {number}"
        numbers.append(number)
    if not numbers:
        return Visible(remark=remark)
    if not ordered:
        # All of them are a certain set in an uncertain order; a part is not even that.
        everything = tuple(card.index for card in cards) if len(numbers) == len(cards) else ()
        return Visible(indices=everything, ambiguous=_UNLIKE_CARDS, remark=remark)
    return _of_cards(gpus, [cards[number] for number in numbers], remark)


def _by_uuid(gpus: Sequence[GpuIdentity], cards: Sequence[GpuIdentity], entries: Sequence[str]) -> Visible:
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
            return Visible(remark=f"CUDA_VISIBLE_DEVICES repeats {name}: CUDA shows no device then")
        chosen.append(matches[0])
    return _of_cards(gpus, chosen, remark)


def _of_cards(gpus: Sequence[GpuIdentity], chosen: Sequence[GpuIdentity], remark: str | None) -> Visible:
    """The devices that a choice of cards stands for: a card with MIG on stands for its only slice."""
    indices: list[int] = []
    for card in chosen:
        if card.kind == "gpu":
            indices.append(card.index)
            continue
        slices = _slices_of(gpus, card)
        if len(slices) != 1:
            return Visible(ambiguous=f"{card.uuid} is split into {len(slices)} MIG slices and none is named", remark=remark)
        indices.append(slices[0])
    return Visible(indices=tuple(indices), remark=remark)


def _mig_device(gpus: Sequence[GpuIdentity], entries: Sequence[str]) -> Visible:
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
        return Visible(ambiguous=f"CUDA_VISIBLE_DEVICES names {name}, which the driver does not show as one MIG slice")
    remark = f"CUDA shows a process one MIG slice only: {name}" if len(entries) > 1 else None
    return Visible(indices=(found[0].index,), remark=remark)


def _starts(uuid: str | None, prefix: str) -> bool:
    return (uuid or "").lower().startswith(prefix.lower())


def _leading_number(entry: str) -> int | None:
    """The number an entry starts with, as C's strtoul reads it: `1gpu2` is 1, `0-2` is 0, `gpu` is none."""
    match = _LEADING_NUMBER.match(entry)
    return int(match[1]) if match else None
