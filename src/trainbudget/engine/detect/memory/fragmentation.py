"""The cache: held by the allocator, used by nobody."""

from __future__ import annotations

from collections.abc import Iterable

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.detect.memory.standing import GIB, STANDING_EVIDENCE, gib, standing
from trainbudget.findings import CodeRecord, Route, Severity, Threshold

#: Growth of reserved below this within a session is not a ratchet: one or two large segments.
RATCHET_BYTES = 1.0 * GIB


class MemoryFragmentation(BaseDetector):
    """The allocator holds much more than any step has needed, and it matters."""

    record = CodeRecord(
        code="memory_fragmentation",
        family="memory",
        severity=Severity.WARNING,
        title="The allocator's cache is fragmented",
        condition="Reserved exceeds the highest peak so far by more than 1 GiB and 10 %, after growing in this session, and "
        "either the allocator had to flush and retry, or less than 10 % of the limit is left outside the cache. Critical where "
        "several ranks communicate and less than 1 GiB is left for that.",
        silent="Where the peak itself once needed what is reserved (long batches); for a cache that was left by an earlier "
        "attempt and does not grow; while the device has room.",
        evidence={
            **STANDING_EVIDENCE,
            "excess_bytes": "reserved that no peak has needed",
            "inactive_split_bytes": "free parts of split blocks",
            "retries": "flush-and-retry of the allocator in this session",
            "room_bytes": "left on the device outside the cache",
        },
        thresholds=(
            Threshold(name="excess_bytes", default=1.0 * GIB, unit="bytes", reason="one pool of small blocks is no matter"),
            Threshold(
                name="excess_ratio", default=0.10, unit="ratio", reason="reserved minus allocated is 0-6 % in healthy traces"
            ),
            Threshold(
                name="starved_bytes",
                default=1.0 * GIB,
                unit="bytes",
                reason="NCCL takes up to 1 GiB outside the allocator, mid-step, and fails instead of making it flush",
            ),
            Threshold(name="room_ratio", default=0.10, unit="ratio", reason="the next large request may be of this size"),
        ),
        levers=("L28", "L06", "L09"),
        route=Route.TICKET,
        runbook="Set PYTORCH_ALLOC_CONF=expandable_segments:True (older torch: PYTORCH_CUDA_ALLOC_CONF) before the process "
        "starts; not with CUDA IPC or a pluggable allocator. Else make the shapes fewer: pad to multiples, group by length.",
    )
    every_s = 15.0
    clear_s = 300.0

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        if not timeline.run.training:
            return
        for device in timeline.owned:
            track = device.memory
            if track.session is not timeline.run.session:
                continue
            excess = track.excess_bytes
            last = track.last
            if excess is None or last is None or excess < view.limit(self.record, "excess_bytes"):
                continue
            reserved = last.reserved_bytes or 0.0
            if excess < view.limit(self.record, "excess_ratio") * reserved or track.reserved_begin is None:
                continue
            if reserved - track.reserved_begin < RATCHET_BYTES:
                continue
            now = standing(device, timeline)
            retries = (last.alloc_retries or 0.0) - (track.retries_begin or 0.0)
            room = None if now.capacity is None else now.capacity - reserved
            tight = room is not None and now.limit is not None and room < view.limit(self.record, "room_ratio") * now.limit
            if retries <= 0 and not tight:
                continue
            why = f", {retries:.0f} flushes" if retries > 0 else f", {gib(room)} left outside it"
            starved = timeline.world_size > 1 and room is not None and room < view.limit(self.record, "starved_bytes")
            yield Signal(
                "memory_fragmentation",
                gpu=device.index,
                severity=Severity.CRITICAL if starved else Severity.WARNING,
                summary=f"the cache holds {gib(excess)} that no step has needed{why}",
                evidence={
                    **now.evidence(),
                    "excess_bytes": round(excess),
                    "inactive_split_bytes": last.inactive_split_bytes,
                    "retries": retries,
                    "room_bytes": None if room is None else round(room),
                },
            )
