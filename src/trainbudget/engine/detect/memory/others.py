"""Memory on our device that is not ours: another job, a dead one, or the contexts of sibling ranks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.detect.memory.standing import (
    CONTEXT_MOST_BYTES,
    GIB,
    OTHERS_BYTES,
    STANDING_EVIDENCE,
    context_of,
    driver_part,
    gib,
    others_of,
    standing,
)
from trainbudget.engine.timeline import Timeline
from trainbudget.engine.tracks.device import IDLE_UTILIZATION, DeviceTrack
from trainbudget.findings import CodeRecord, Route, Severity, Threshold

#: A context of a rank that touched this device: 250 MiB to 1.25 GiB with its libraries (PyTorch issue 49481: 871 MiB).
PART_LEAST_BYTES, PART_MOST_BYTES = 0.2 * GIB, 1.3 * GIB
EXTRA_BYTES = 0.5 * GIB
#: Contexts of the same program on the same card differ by less than this.
PART_SPREAD = 0.15

_OTHERS = Threshold(
    name="others_bytes",
    default=OTHERS_BYTES,
    unit="bytes",
    reason="contexts, desktops, NCCL and what the driver keeps stay below 1 GiB and cannot be told apart",
)


@dataclass(frozen=True, slots=True)
class Siblings:
    """Extra contexts of sibling ranks: `parts` equal ones of `part_bytes`."""

    parts: int
    part_bytes: float
    source: str  # processes, ranks


def others_held(device: DeviceTrack, timeline: Timeline) -> float | None:
    """What others hold, or None; cheap where nothing is there."""
    track = device.memory
    if track.outside:
        if track.outside[-1] < OTHERS_BYTES:
            return 0.0
    elif device.last is None or not device.last.processes:
        return None
    return others_of(device, timeline, context_of(device, timeline))


def siblings_of(device: DeviceTrack, timeline: Timeline) -> Siblings | None:
    """Equal small parts that belong to the other ranks, or None."""
    world = timeline.world_size
    if world < 2:
        return None
    rows = device.last.processes if device.last is not None else None
    sizes = sorted(r.memory_bytes for r in rows or () if r.memory_bytes is not None and not r.own)
    small = [s for s in sizes if PART_LEAST_BYTES <= s <= PART_MOST_BYTES]
    if small:
        middle = small[len(small) // 2]
        parts = [s for s in small if abs(s - middle) <= PART_SPREAD * middle]
        # Two or more equal ones are no coincidence; a single one is, unless it is the only sibling's.
        if min(2, world - 1) <= len(parts) <= world - 1 and sum(parts) >= 0.7 * (others_held(device, timeline) or 0.0):
            return Siblings(len(parts), middle, "processes")
    return _by_ranks(device, timeline, world)


def _by_ranks(device: DeviceTrack, timeline: Timeline, world: int) -> Siblings | None:
    """Our device carries more than the others' do, and our allocator does not hold it."""
    used = device.last.memory_used_bytes if device.last is not None else None
    peers = sorted(t.last.memory_used_bytes for t in timeline.ranks.values() if t.last is not None and t.last.memory_used_bytes)
    outside = device.memory.outside[-1] if device.memory.outside else None
    if used is None or not peers or outside is None or len(timeline.owned) != 1:
        return None
    extra = min(outside - PART_LEAST_BYTES, used - peers[len(peers) // 2]) - driver_part(device)
    if extra < EXTRA_BYTES:
        return None
    parts = min(len(peers), world - 1)
    while parts > 1 and extra / parts < PART_LEAST_BYTES:
        parts -= 1
    return Siblings(parts, extra / parts, "ranks") if extra / parts <= PART_MOST_BYTES else None


def may_be_siblings(device: DeviceTrack, timeline: Timeline, held: float) -> bool:
    """With several ranks, neither process list nor word of the others, and no change since the start: nobody can tell."""
    world, track = timeline.world_size, device.memory
    if world < 2 or timeline.ranks or (device.last is not None and device.last.processes):
        return False
    steady = track.outside_low is not None and track.outside[-1] - track.outside_low < EXTRA_BYTES
    return steady and held <= (world - 1) * PART_MOST_BYTES


class RankExtraMemory(BaseDetector):
    """The other ranks hold contexts on our device."""

    record = CodeRecord(
        code="rank_extra_memory",
        family="memory",
        severity=Severity.WARNING,
        title="This GPU carries contexts of other ranks",
        condition="Memory outside our allocator comes in two or more equal parts of 0.2-1.3 GiB, at most one for each other "
        "rank; or our device holds that much more than the other ranks' do.",
        silent="With one rank; where all ranks' devices carry the same.",
        evidence={
            **STANDING_EVIDENCE,
            "parts": "number of equal parts",
            "part_bytes": "size of one",
            "world_size": "ranks of the job",
            "source": "processes: the driver's list; ranks: comparison with the other ranks",
        },
        thresholds=(
            Threshold(
                name="extra_bytes", default=EXTRA_BYTES, unit="bytes", reason="two small contexts: the smallest that counts"
            ),
        ),
        levers=(),
        route=Route.TICKET,
        runbook="Each rank must choose its device before it touches CUDA: torch.cuda.set_device(local_rank), or one visible "
        "device a process. torch.load needs map_location; otherwise every rank loads onto GPU 0.",
    )
    every_s = 15.0
    hold_s = 10.0
    clear_s = 120.0

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        if timeline.world_size < 2 or not timeline.run.training:
            return
        for device in timeline.owned:
            found = siblings_of(device, timeline)
            if found is None or found.parts * found.part_bytes < view.limit(self.record, "extra_bytes"):
                continue
            whole = found.parts * found.part_bytes
            yield Signal(
                "rank_extra_memory",
                gpu=device.index,
                summary=f"{found.parts} contexts of other ranks, {gib(found.part_bytes)} each, {gib(whole)} in all",
                evidence={
                    **standing(device, timeline).evidence(),
                    "parts": found.parts,
                    "part_bytes": round(found.part_bytes),
                    "world_size": timeline.world_size,
                    "source": found.source,
                },
            )


def stale_bytes(device: DeviceTrack, timeline: Timeline) -> float | None:
    """What was held at the start by somebody who did nothing, and still is; None where that is not known."""
    track = device.memory
    rows = device.last.processes if device.last is not None else None
    dead = [r.memory_bytes for r in rows or () if r.alive is False and r.memory_bytes is not None and not r.own]
    if dead and sum(dead) >= OTHERS_BYTES:
        return sum(dead)
    if track.early_used is None or track.early_used < OTHERS_BYTES:
        return None
    if track.early_busy is None or track.early_busy >= IDLE_UTILIZATION:
        return None  # it worked, or nobody knows
    held = others_held(device, timeline)
    if held is None or may_be_siblings(device, timeline, held):
        return None
    if track.outside_low is not None and track.outside_low - CONTEXT_MOST_BYTES < OTHERS_BYTES:
        return None  # it was not there all the time: what was there early was our own model
    return min(held, track.early_used)


class StaleHolder(BaseDetector):
    """Somebody held memory before we began and does nothing with it."""

    record = CodeRecord(
        code="stale_holder",
        family="memory",
        severity=Severity.WARNING,
        title="A process that does nothing holds GPU memory",
        condition="More than 1 GiB was in use on the idle device before this run put anything there, and still is; or the driver "
        "lists a process that is no longer alive.",
        silent="When the device was busy before (foreign_memory); for contexts of sibling ranks; below 1 GiB.",
        evidence={**STANDING_EVIDENCE, "held_bytes": "held since before the run", "processes": "the driver's list"},
        thresholds=(_OTHERS,),
        levers=(),
        route=Route.TICKET,
        runbook="Look for a forgotten notebook kernel or a dead job's children: nvidia-smi, fuser -v /dev/nvidia*. Ending it "
        "gives the memory back at once.",
    )
    every_s = 15.0
    clear_s = 30.0

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        if not timeline.run.training or "rank_extra_memory" in view.raised:
            return
        for device in timeline.owned:
            held = stale_bytes(device, timeline)
            if held is None or held < view.limit(self.record, "others_bytes") or siblings_of(device, timeline) is not None:
                continue
            yield Signal(
                "stale_holder",
                gpu=device.index,
                summary=f"{gib(held)} held since before the run by a process that does nothing",
                evidence={**standing(device, timeline).evidence(), "held_bytes": round(held), "processes": rows_of(device)},
            )


class ForeignMemory(BaseDetector):
    """Others hold or take memory on our device."""

    record = CodeRecord(
        code="foreign_memory",
        family="memory",
        severity=Severity.WARNING,
        title="Another process takes memory on this GPU",
        condition="Device use minus own reserved minus own context exceeds 1 GiB for 15 s; critical when the own peak does not "
        "fit beside it.",
        silent="Below 1 GiB; where neither the allocator nor the driver's attribution is known; for process lists that do not "
        "recognise this process (another namespace) beyond what the device's use confirms; for contexts of sibling ranks.",
        evidence={
            **STANDING_EVIDENCE,
            "processes": "the driver's list",
            "since_begin": "whether it was there when training began",
        },
        thresholds=(_OTHERS,),
        levers=(),
        route=Route.TICKET,
        runbook="Find the other process (nvidia-smi on the host: ids in containers are of another namespace). A smaller batch is "
        "not the first thing to try: the memory is not yours.",
    )
    every_s = 5.0
    hold_s = 15.0
    clear_s = 30.0

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        if not timeline.run.training or not timeline.run.started or "rank_extra_memory" in view.raised:
            return
        for device in timeline.owned:
            held = others_held(device, timeline)
            if held is None or held < view.limit(self.record, "others_bytes"):
                continue
            stale = stale_bytes(device, timeline) or 0.0
            if held - stale < view.limit(self.record, "others_bytes") or siblings_of(device, timeline) is not None:
                continue
            if may_be_siblings(device, timeline, held):
                continue
            now = standing(device, timeline)
            fits = now.capacity is None or now.peak is None or now.peak <= now.capacity
            yield Signal(
                "foreign_memory",
                gpu=device.index,
                severity=Severity.WARNING if fits else Severity.CRITICAL,
                summary=f"others hold {gib(held)} on GPU {device.index}, this run {gib(now.reserved)}",
                evidence={
                    **now.evidence(),
                    "processes": rows_of(device),
                    "since_begin": device.memory.early_used is not None and device.memory.early_used >= OTHERS_BYTES,
                },
            )


def rows_of(device: DeviceTrack) -> list[dict[str, object]]:
    """The driver's process list as evidence, the largest first, at most ten."""
    rows = device.last.processes if device.last is not None else None
    known = sorted(rows or (), key=lambda r: -(r.memory_bytes or 0.0))[:10]
    return [{"pid": r.pid, "memory_bytes": r.memory_bytes, "own": r.own, "alive": r.alive} for r in known]
