"""Why it did not fit: the numbers of one out-of-memory error, and the cause they point to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainbudget.engine.detect.memory.evaluation import accumulation_of
from trainbudget.engine.detect.memory.growth import growth_of, used_growth
from trainbudget.engine.detect.memory.lengths import observed_line
from trainbudget.engine.detect.memory.others import siblings_of
from trainbudget.engine.detect.memory.predicted import optimizer_state_bytes
from trainbudget.engine.detect.memory.standing import GIB, OTHERS_BYTES, Standing, driver_part, most_own, standing
from trainbudget.engine.oom_message import OomNumbers, parse_oom
from trainbudget.engine.timeline import Timeline
from trainbudget.engine.tracks.device import DeviceTrack
from trainbudget.engine.tracks.run import Moment

CAUSES = (
    "longest_batch",
    "leak",
    "fragmentation",
    "foreign_memory",
    "optimizer_state",
    "eval_accumulation",
    "checkpoint_gather",
    "true_capacity",
    "pending_stream_frees",
    "epoch_end",
    "sibling_ranks",
)
#: Cache beyond this share of reserved (and 1 GiB) is more than rounding: reserved minus allocated is 0-6 % in healthy runs.
FRAGMENTED_RATIO = 0.10
#: Optimizer states below this share of what may be held do not decide.
STATE_RATIO = 0.10
#: Still allocated after the failed step was unwound: held between steps.
STAYED_RATIO = 0.9
#: A peak this far above every earlier one is another batch, not noise.
LONGER_RATIO = 0.01
#: Peaks that differ this much from step to step follow the batch.
VARIED_RATIO = 0.05
#: Lengths whose longest exceeds the median by this vary.
VARIED_LENGTHS = 1.2
#: Seconds after an epoch's end in which a failure belongs to it, where no step has come since.
EPOCH_END_S = 60.0


@dataclass(frozen=True, slots=True)
class Crime:
    """One failed allocation, in bytes; None = unknown.

    Attributes:
        allocated: in use at the failure, not after unwinding: as the message says, else reserved minus the cache that was
            unused before (a failing step takes new segments only when its cache is used up).
        needed: allocated plus requested.
        told: allocated as the event says, perhaps after unwinding.
        pending: freed on another stream and not reusable yet.
    """

    gpu: int | None
    requested: float | None
    allocated: float | None
    reserved: float | None
    free: float | None
    total: float | None
    told: float | None
    pending: float | None
    phase: str | None
    others: float | None
    message: OomNumbers | None

    @property
    def needed(self) -> float | None:
        return None if self.allocated is None else self.allocated + (self.requested or 0.0)

    @property
    def cached(self) -> float | None:
        return None if self.allocated is None or self.reserved is None else max(0.0, self.reserved - self.allocated)


def crime_of(moment: Moment, device: DeviceTrack | None, timeline: Timeline) -> Crime:
    """The numbers of an `oom` event, or of an exception that is one."""
    detail = moment.detail
    said = parse_oom(_text(detail.get("message")))
    track = device.memory if device is not None else None
    last = track.last if track is not None else None
    reserved = _number(detail, "reserved_bytes")
    if reserved is None:
        reserved = said.reserved_bytes if said is not None else None
    if reserved is None and last is not None:
        reserved = last.reserved_bytes
    allocated = said.allocated_bytes if said is not None else None
    if allocated is None:
        allocated = _allocated(detail, reserved, device, moment.t_s)
    phase = _text(detail.get("phase")) or timeline.run.phase
    others = said.others_bytes if said is not None else None
    now = standing(device, timeline) if device is not None else None
    if others is None and now is not None:
        others = now.others
    pending = None
    if last is not None and last.active_bytes is not None and last.allocated_bytes is not None:
        pending = max(0.0, last.active_bytes - last.allocated_bytes)
    return Crime(
        gpu=device.index if device is not None else None,
        requested=_first(_number(detail, "requested_bytes"), said.requested_bytes if said else None),
        allocated=allocated,
        reserved=reserved,
        free=_first(_number(detail, "free_bytes"), said.free_bytes if said else None),
        total=_first(_number(detail, "total_bytes"), said.total_bytes if said else None),
        told=_number(detail, "allocated_bytes"),
        pending=pending,
        phase=phase,
        others=others,
        message=said,
    )


def cause_of(crime: Crime, device: DeviceTrack | None, timeline: Timeline) -> str:
    """The cause that explains the failure: the first of these without which it would have fitted."""
    if device is None:
        return "true_capacity"
    now = standing(device, timeline)
    for rule in _RULES:
        cause = rule(crime, device, timeline, now)
        if cause is not None:
            return cause
    return "true_capacity"


# --- rules, most specific first; each says which fact, taken away, makes it fit


def _save(crime: Crime, device: DeviceTrack, timeline: Timeline, now: Standing) -> str | None:
    return "checkpoint_gather" if crime.phase == "save" else None


def _evaluation(crime: Crime, device: DeviceTrack, timeline: Timeline, now: Standing) -> str | None:
    if crime.phase != "eval":
        return None
    track = device.memory
    if accumulation_of(track) is not None:
        return "eval_accumulation"
    phase = track.phase
    if phase is None or phase.phase != "eval" or len(phase.lines) < 3:
        return None
    rise = phase.lines[-1][1] - phase.lines[0][1]
    return "eval_accumulation" if rise > max(GIB, 0.05 * (now.limit or 0.0)) else None


def _states(crime: Crime, device: DeviceTrack, timeline: Timeline, now: Standing) -> str | None:
    """In the first optimizer step, or in the one after it: states came on top, and no whole step with them has fitted yet."""
    session, track = timeline.run.session, device.memory
    steps = session.steps if session is not None else 0
    if crime.phase == "optimizer" and steps <= 1:
        return "optimizer_state"
    before = track.early_level if track.early_level is not None else track.begin_allocated
    after = track.first_rest if track.first_rest is not None else crime.told
    state = optimizer_state_bytes(timeline)
    if steps == 0 and state and track.early_peak is not None and now.capacity is not None:
        # Micro-batches have fitted, and none of them leaves room for the states that the first step makes.
        return "optimizer_state" if track.early_peak <= now.capacity < track.early_peak + state else None
    if steps != 1 or before is None or after is None:
        return None
    grown = after - before
    states = max(grown, 0.0) if state is None else min(state, max(grown, 0.0))
    limit = now.limit or crime.total
    return "optimizer_state" if limit is not None and states > STATE_RATIO * limit else None


def _siblings(crime: Crime, device: DeviceTrack, timeline: Timeline, now: Standing) -> str | None:
    said = crime.message
    found = siblings_of(device, timeline)
    held = found.parts * found.part_bytes if found is not None else None
    if held is None and said is not None and timeline.world_size > 1 and said.others_count >= 2:
        held = said.others_bytes
    return "sibling_ranks" if held is not None and _fits_with(crime, now, held) else None


def _foreign(crime: Crime, device: DeviceTrack, timeline: Timeline, now: Standing) -> str | None:
    others, least = crime.others, OTHERS_BYTES
    if others is None and crime.total is not None and crime.free is not None:
        # By subtraction alone, from the error's own numbers: known to a context and the driver's part.
        process = crime.message.process_bytes if crime.message is not None else None
        if process is not None:
            others = crime.total - crime.free - process - driver_part(device)
        elif crime.reserved is not None:
            others, least = crime.total - crime.free - crime.reserved - most_own(device, timeline), 2.0 * OTHERS_BYTES
    return "foreign_memory" if others is not None and others >= least and _fits_with(crime, now, others) else None


def _leak(crime: Crime, device: DeviceTrack, timeline: Timeline, now: Standing) -> str | None:
    if crime.phase in ("eval", "save"):
        return None
    device.memory.cache.pop("growth", None)  # the newest points count
    growth = growth_of(device.memory, timeline)
    if device.memory.lines == 0 and crime.told is not None and crime.told >= STAYED_RATIO * (crime.reserved or crime.told):
        growth = used_growth(device.memory)  # what is still held after unwinding is not a step's
    if growth is None:
        return None
    return "leak" if crime.needed is None or _fits_with(crime, now, growth.grown_bytes, capped=True) else None


def _streams(crime: Crime, device: DeviceTrack, timeline: Timeline, now: Standing) -> str | None:
    if crime.pending is None or crime.pending < max(0.25 * GIB, crime.requested or 0.0):
        return None
    return "pending_stream_frees"


def _fragmented(crime: Crime, device: DeviceTrack, timeline: Timeline, now: Standing) -> str | None:
    cached = crime.cached
    if cached is None or crime.reserved is None or cached < max(GIB, FRAGMENTED_RATIO * crime.reserved):
        return None
    outside = crime.message is not None and crime.message.outside
    return "fragmentation" if outside or crime.requested is None or cached >= crime.requested else None


def _epoch_end(crime: Crime, device: DeviceTrack, timeline: Timeline, now: Standing) -> str | None:
    """Between the last step of an epoch and the first of the next: what is done once an epoch did not fit."""
    run = timeline.run
    if crime.phase in ("eval", "save"):
        return None
    last = next((m for m in reversed(run.moments) if m.event in ("epoch_end", "epoch_begin")), None)
    if last is None or last.event != "epoch_end" or timeline.last_step is None:
        return None
    stepped = timeline.last_step.event.t_s > last.t_s
    return None if stepped or timeline.since(last.t_s) > EPOCH_END_S else "epoch_end"


def _longest(crime: Crime, device: DeviceTrack, timeline: Timeline, now: Standing) -> str | None:
    """Peaks follow the batch's length, or wander from step to step, and this one wanted more than any before."""
    track = device.memory.tokens
    session = timeline.run.session
    if crime.needed is None or session is None or session.steps < 3 or track.highest <= 0.0:
        return None
    if crime.needed <= track.highest * (1.0 + LONGER_RATIO):
        return None
    if observed_line(device, by="sequence") is not None or observed_line(device, by="batch") is not None:
        return "longest_batch"
    lengths = sorted(r.event.max_sequence_tokens or r.event.tokens or 0.0 for r in timeline.steps.recent)
    if lengths and lengths[-1] > VARIED_LENGTHS * lengths[len(lengths) // 2] > 0.0:
        return "longest_batch"
    heights = sorted(device.memory.transients)
    if len(heights) >= 8 and now.at_rest is not None:
        low, high = heights[len(heights) // 10], heights[-1]
        if high - low > VARIED_RATIO * (now.at_rest + high):
            return "longest_batch"
    return None


_RULES = (_save, _evaluation, _states, _siblings, _foreign, _leak, _streams, _fragmented, _epoch_end, _longest)


def _fits_with(crime: Crime, now: Standing, more: float, *, capped: bool = False) -> bool:
    """Whether it would have fitted with `more` bytes in addition: those, and nothing else, were missing.

    A cap of the process' own allocator is not widened by what others give back; `capped` = the bytes are the process' own.
    """
    limit = now.limit if now.limit is not None else crime.total
    allowed = crime.message.allowed_bytes if crime.message is not None else None
    if crime.needed is None or (limit is None and allowed is None):
        return True
    rooms = [] if limit is None else [limit - now.context - (crime.others or 0.0) + more]
    if allowed is not None:
        rooms.append(allowed + (more if capped else 0.0))
    return crime.needed <= min(rooms)


def _allocated(detail: dict[str, Any], reserved: float | None, device: DeviceTrack | None, t_s: float) -> float | None:
    """In use at the failure. Details taken after unwinding say too little: what the allocator holds says more."""
    told = _number(detail, "allocated_bytes")
    if device is None or device.memory.lines == 0:
        return None  # nobody can say whether it was taken before or after unwinding
    failure = device.memory.failure
    candidates = [told] if told is not None else []
    before = failure if failure is not None and abs(failure.t_s - t_s) <= 5.0 else None
    if before is not None and before.peak_bytes is not None:
        candidates.append(before.peak_bytes)
    excess = before.excess_bytes if before is not None else device.memory.excess_bytes
    if reserved is not None and excess is not None:
        candidates.append(max(0.0, reserved - excess))
    return max(candidates) if candidates else None


def _number(detail: dict[str, Any], name: str) -> float | None:
    value = detail.get(name)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _first(*values: float | None) -> float | None:
    return next((v for v in values if v is not None), None)
