"""The numbers of one device's memory, kept apart: at rest, peak, reserved, device, others; and what may be held."""

from __future__ import annotations

from dataclasses import dataclass

from trainbudget.engine.timeline import Timeline
from trainbudget.engine.tracks.device import DeviceTrack

GIB = float(2**30)
#: A CUDA context with its libraries takes 250-500 MiB, on a V100 up to 870 MiB (PyTorch issues 107667, 109888, 49481).
CONTEXT_BYTES = 0.45 * GIB
CONTEXT_MOST_BYTES = 0.6 * GIB
#: NCCL's buffers and channels of one communicator: 0.5-1 GiB (miles issue 2199: about 1.4 GiB outside the allocator).
COMMUNICATION_MOST_BYTES = 1.0 * GIB
#: What the driver keeps of a card, where it does not tell: 250 MiB on small ones to 912 MiB on 80 GB (nvml-wrapper issue 57).
DRIVER_SHARE, DRIVER_LEAST_BYTES, DRIVER_MOST_BYTES = 0.012, 0.3 * GIB, 1.0 * GIB
#: How far the room is known (90 %): the context is estimated, segments are taken in steps of 2 to 20 MiB and more, and the
#: driver's last blocks cannot be had. Seen in recorded failures: 30 MiB to 0.5 % of the limit.
ROOM_ERROR_RATIO, ROOM_ERROR_LEAST_BYTES = 0.005, 0.03 * GIB
#: Others hold "something" above this: contexts, desktops and what is not attributable stay below.
OTHERS_BYTES = 1.0 * GIB


@dataclass(frozen=True, slots=True)
class Standing:
    """Bytes; None = unknown.

    Attributes:
        at_rest: allocated between steps. peak: highest allocated. reserved: held by the allocator. device: in use on the card.
        others: device use minus own reserved minus own context (estimated unless the driver attributes it).
        limit: what this process may hold, its context included, before others' use; `limit_source` says who says so.
        capacity: what the allocator may hold of it now: limit minus context minus others.
    """

    at_rest: float | None
    peak: float | None
    reserved: float | None
    device: float | None
    context: float
    others: float | None
    limit: float | None
    limit_source: str | None

    @property
    def capacity(self) -> float | None:
        return None if self.limit is None else self.limit - self.context - (self.others or 0.0)

    @property
    def room_error(self) -> float:
        """How far `capacity` may be off (90 %)."""
        return max(ROOM_ERROR_LEAST_BYTES, ROOM_ERROR_RATIO * (self.limit or 0.0))

    def evidence(self) -> dict[str, object]:
        """The numbers as every memory finding shows them."""
        return {
            "at_rest_bytes": self.at_rest,
            "peak_bytes": self.peak,
            "reserved_bytes": self.reserved,
            "device_bytes": self.device,
            "others_bytes": self.others,
            "context_bytes": self.context,
            "limit_bytes": self.limit,
            "limit_source": self.limit_source,
        }


#: Meanings of `Standing.evidence`, for the records.
STANDING_EVIDENCE = {
    "at_rest_bytes": "allocated between steps",
    "peak_bytes": "highest allocated since training began",
    "reserved_bytes": "held by the allocator, cache included",
    "device_bytes": "in use on the device",
    "others_bytes": "held by others: device use minus own reserved minus own context",
    "context_bytes": "own context and libraries, measured or estimated",
    "limit_bytes": "what this process may hold",
    "limit_source": "who says so",
}


def standing(device: DeviceTrack, timeline: Timeline) -> Standing:
    """The numbers now."""
    track = device.memory
    last = track.last
    limit, source = limit_of(device, timeline)
    context = context_of(device, timeline)
    return Standing(
        at_rest=track.level_bytes if track.rest.total else (last.allocated_bytes if last is not None else None),
        peak=track.session_peak,
        reserved=last.reserved_bytes if last is not None else None,
        device=device.last.memory_used_bytes if device.last is not None else None,
        context=context if context is not None else CONTEXT_BYTES,
        others=others_of(device, timeline, context),
        limit=limit,
        limit_source=source,
    )


def limit_of(device: DeviceTrack, timeline: Timeline) -> tuple[float | None, str | None]:
    """What this process may hold on the device, and who says so; None where nobody does (a MIG slice of unknown size)."""
    info = device.info
    if info.unified_memory:
        host, own = timeline.host.last, device.memory.last
        if host is None or host.memory_available_bytes is None:
            return None, None
        held = own.reserved_bytes if own is not None and own.reserved_bytes is not None else 0.0
        return host.memory_available_bytes + held, "host memory"
    if info.memory_limit_bytes is not None:
        return info.memory_limit_bytes, info.memory_limit_source or "given"
    if info.mig or info.memory_total_bytes is None:
        return None, None
    reserved = device.last.memory_reserved_bytes if device.last is not None else None
    return info.memory_total_bytes - (reserved or 0.0), "device"


def context_of(device: DeviceTrack, timeline: Timeline) -> float | None:
    """Own context, libraries and (where the driver does not tell it apart) the driver's part; None before it was seen."""
    last, track = device.last, device.memory
    if last is not None and last.context_bytes is not None:
        return last.context_bytes
    if track.outside_low is None:
        return None
    return min(track.outside_low, most_own(device, timeline))


def others_of(device: DeviceTrack, timeline: Timeline, context: float | None) -> float | None:
    """What others hold, or None. The driver's own attribution counts only where it recognises this process."""
    last = device.last
    rows = last.processes if last is not None else None
    outside = _outside(device, timeline, context)
    if rows and any(r.own for r in rows):
        held = [r.memory_bytes for r in rows]
        foreign = [r.memory_bytes for r in rows if not r.own]
        if all(value is not None for value in foreign):
            listed = sum(value for value in foreign if value is not None)
            if outside is None or any(value is None for value in held):
                return listed
            return listed + _unlisted(device, sum(value for value in held if value is not None), outside - listed)
    return outside


def _outside(device: DeviceTrack, timeline: Timeline, context: float | None) -> float | None:
    """What is in use beyond our allocator and our context."""
    last, track = device.last, device.memory
    if not track.outside or context is None:
        return None
    newest = min(list(track.outside)[-3:])  # the lowest of three: one early reading must not look like somebody else
    if last is not None and last.context_bytes is not None:
        # A measured context leaves the libraries' buffers and the driver's part unexplained.
        return max(0.0, newest - max(last.context_bytes, min(track.outside_low or 0.0, most_own(device, timeline))))
    return max(0.0, newest - context)


def _unlisted(device: DeviceTrack, listed_bytes: float, outside_bytes: float) -> float:
    """Memory of processes that the driver does not list: it names only those of its own container or session.

    Both what no row holds and what is beyond our allocator must say so; rows are read less often than the use, so small
    differences say nothing.
    """
    used = device.last.memory_used_bytes if device.last is not None else None
    if used is None:
        return 0.0
    hidden = min(used - listed_bytes - driver_part(device), outside_bytes)
    return hidden if hidden >= OTHERS_BYTES else 0.0


def most_own(device: DeviceTrack, timeline: Timeline) -> float:
    """What may be outside our allocator without anybody else: context, NCCL, the driver's part where it is not told apart."""
    most = CONTEXT_MOST_BYTES
    if timeline.world_size > 1:
        most += COMMUNICATION_MOST_BYTES
    return most + driver_part(device)


def driver_part(device: DeviceTrack) -> float:
    """What the driver may keep of the device's use; 0 where it tells that apart."""
    total = device.info.memory_total_bytes
    if total is None or (device.last is not None and device.last.memory_reserved_bytes is not None):
        return 0.0
    return min(DRIVER_MOST_BYTES, max(DRIVER_LEAST_BYTES, DRIVER_SHARE * total))


def gib(value: float | None) -> str:
    """Bytes as text in GiB, for summaries."""
    return "?" if value is None else f"{value / GIB:.1f} GiB"
