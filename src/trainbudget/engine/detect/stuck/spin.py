"""Who spins in a collective, and who is missing from it: read off utilization, power and the other ranks' last words.

A collective kernel that waits for a peer polls memory: the driver counts it as utilization 100 %, but it keeps a few
multiprocessors busy with nothing, so that power falls to a third of that of training and memory traffic to almost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trainbudget.engine.detect.devices import mean_utilization
from trainbudget.engine.timeline import Timeline
from trainbudget.engine.tracks.device import IDLE_UTILIZATION, DeviceTrack
from trainbudget.engine.tracks.host import RankTrack
from trainbudget.engine.tracks.series import median
from trainbudget.events import Rank

#: A spinning kernel runs all the time; a GPU with work of its own and pauses shows less.
SPIN_UTILIZATION = 0.9
#: Spinning takes 25-40 % of the power of training (field reports: 110 of 320 W); real work seldom falls below 60 %.
SPIN_POWER_RATIO = 0.5
#: Without a reference from training: of the power limit. A busy training card draws more than half of it.
SPIN_LIMIT_RATIO = 0.4
#: Memory traffic of a spinning kernel against that of training, for cards that do not tell their power.
SPIN_MEMORY_RATIO = 0.25


@dataclass(frozen=True, slots=True)
class Spin:
    """Somebody spins. `suspect_ranks` and `suspect_gpus` are those that left, fell silent or are behind."""

    power_w: float | None
    training_power_w: float | None
    utilization_ratio: float
    spinning_gpus: tuple[int, ...]
    spinning_ranks: tuple[int, ...]
    suspect_gpus: tuple[int, ...]
    suspect_ranks: tuple[int, ...]


def spin_of(timeline: Timeline) -> Spin | None:
    """Who spins while no step comes; None when nobody does or nobody can tell. Only for runs that have collectives."""
    if not _has_peers(timeline):
        return None
    spinning = [d for d in timeline.owned if device_spins(timeline, d)]
    peers = [r for r in timeline.ranks.values() if r.last is not None and _rank_spins(timeline, r)]
    if not spinning and not peers:
        return None
    device = spinning[0] if spinning else None
    word = peers[0].last if peers else None
    utilization = mean_utilization(timeline, device) if device is not None else (word.utilization_ratio if word else None)
    return Spin(
        power_w=_power(timeline, device) if device is not None else (word.power_w if word else None),
        training_power_w=device.load.power_w if device is not None else None,
        utilization_ratio=utilization or 1.0,
        spinning_gpus=tuple(d.index for d in spinning),
        spinning_ranks=tuple(r.rank for r in peers),
        suspect_gpus=tuple(d.index for d in timeline.owned if _idle(timeline, d)),
        suspect_ranks=suspect_ranks(timeline),
    )


def suspect_ranks(timeline: Timeline) -> tuple[int, ...]:
    """Ranks that are not where the others are: silent, failed, without work, or behind in steps."""
    steps = [r.last.step for r in timeline.ranks.values() if r.last is not None and r.last.step is not None]
    own_step = timeline.run.last_step
    newest = max([*steps, *([own_step] if own_step is not None else [])], default=None)
    out = []
    words = [r.last.utilization_ratio for r in timeline.ranks.values() if r.last is not None]
    others_work = any(u is not None and u >= IDLE_UTILIZATION for u in words)
    if others_work and timeline.owned and all(_idle(timeline, d) for d in timeline.owned):
        out.append(timeline.rank)
    for track in timeline.ranks.values():
        word = track.last
        if word is None:
            continue
        # One step of difference is how ranks arrive; a word from before the stop is older by some steps more.
        stopped_s = timeline.run.last_progress_s or 0.0
        allowed = 1 if word.t_s > stopped_s else _steps_of_delay(timeline)
        behind = newest is not None and word.step is not None and word.step < newest - allowed
        if _away(word) or behind:
            out.append(track.rank)
    everybody = len(timeline.ranks) + 1
    return tuple(sorted(out)) if len(out) < everybody else ()


def device_spins(timeline: Timeline, device: DeviceTrack) -> bool:
    """Whether a device is busy all the time with almost no power or memory traffic."""
    utilization = mean_utilization(timeline, device)
    if utilization is None or utilization < SPIN_UTILIZATION:
        return False
    power = _power(timeline, device)
    if power is not None:
        usual, limit = device.load.power_w, device.info.power_limit_w
        if usual is not None:
            return power < SPIN_POWER_RATIO * usual
        return limit is not None and power < SPIN_LIMIT_RATIO * limit
    memory = device.last.memory_utilization_ratio if device.last is not None else None
    usual_memory = device.load.memory_utilization_ratio
    if memory is not None and usual_memory is not None:
        return memory < SPIN_MEMORY_RATIO * usual_memory
    # Neither is told: a GPU that is busy for ever without a step while a peer is away waits for that peer.
    return any(r.last is not None and _away(r.last) for r in timeline.ranks.values())


def _away(word: Rank) -> bool:
    """Whether a rank left, failed, fell silent or has no work."""
    if word.state is not None and word.state != "running":
        return True
    return word.utilization_ratio is not None and word.utilization_ratio < IDLE_UTILIZATION


def _has_peers(timeline: Timeline) -> bool:
    size = timeline.header.world_size
    return size is None or size > 1 or bool(timeline.ranks) or len(timeline.owned) > 1


def _rank_spins(timeline: Timeline, track: RankTrack) -> bool:
    word = track.last
    if word is None or word.utilization_ratio is None or word.utilization_ratio < SPIN_UTILIZATION or word.power_w is None:
        return False
    usual = _usual_power(track.window) or next((d.load.power_w for d in timeline.owned if d.load.power_w is not None), None)
    return usual is not None and word.power_w < SPIN_POWER_RATIO * usual


def _usual_power(words: Iterable[Rank]) -> float | None:
    values = sorted(w.power_w for w in words if w.power_w is not None)
    # The upper quarter: what it drew when it worked, whatever part of the window is already spinning.
    return median(values[3 * len(values) // 4 :]) if len(values) >= 8 else None


def _power(timeline: Timeline, device: DeviceTrack) -> float | None:
    values = [s.power_w for s in device.since(timeline.now_s - 60.0) if s.power_w is not None]
    return median(values)


def _idle(timeline: Timeline, device: DeviceTrack) -> bool:
    utilization = mean_utilization(timeline, device)
    return utilization is not None and utilization < IDLE_UTILIZATION


def _steps_of_delay(timeline: Timeline) -> int:
    """Steps that fit into the half minute by which a rank's last word may be late."""
    step_s = timeline.steps.median_s()
    return int(30.0 / step_s) + 1 if step_s else 1
