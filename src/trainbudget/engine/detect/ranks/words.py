"""What the ranks said while training ran: only what a rank does before it meets the others tells them apart.

Step and backward times are the same on all ranks, whoever is slow: a collective ends for everybody at once (field report:
200 ms more on one rank show as 293.0 / 292.2 / 293.0 / 293.1 ms). What differs is the wait for data, the time until the
first collective, and the clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from trainbudget.engine.detect.hardware.load import load_of
from trainbudget.engine.timeline import Timeline
from trainbudget.engine.tracks.host import WORDS, RankTrack, is_running
from trainbudget.engine.tracks.series import median
from trainbudget.events import Rank

#: Fewer say nothing about a habit.
LEAST_WORDS = 8


@dataclass(frozen=True, slots=True)
class RankView:
    """One rank over the recent past; None = not told. `waits_s` and `befores_s` are word by word, oldest first."""

    rank: int
    waits_s: tuple[float, ...]
    befores_s: tuple[float, ...]
    wait_s: float | None
    before_s: float | None
    clock_hz: float | None
    power_w: float | None
    latenesses_s: tuple[float, ...]  # wait and time before the first collective together: when it is ready for the others
    lateness_s: float | None  # their median


def rank_views(timeline: Timeline) -> list[RankView]:
    """All ranks that have said enough since steps began, our own included."""
    session = timeline.run.session
    if session is None or session.first_step_end_s is None:
        return []
    begun_s = session.first_step_end_s
    views = [v for t in timeline.ranks.values() if t.rank != timeline.rank and (v := _view_of(t, begun_s)) is not None]
    if not views:
        return views
    # Batches sorted by length make steps drift: only what was done at the same time compares.
    since_s = min(_since_s(t, begun_s) for t in timeline.ranks.values() if t.rank != timeline.rank)
    own = _own(timeline, since_s)
    return [*views, own] if own is not None else views


def last_spread_s(timeline: Timeline) -> float:
    """How much later the latest rank's last word is than the earliest one's, seconds: a cheap look before words are compared."""
    own = timeline.last_step.event if timeline.last_step is not None else None
    ready = [] if own is None else [_ready(own.loader_wait_s, own.data_wait_s, own.pre_collective_s)]
    for track in timeline.ranks.values():
        word = track.last
        if word is not None:
            ready.append(_ready(word.loader_wait_s, word.data_wait_s, word.pre_collective_s))
    # Compared only among those that tell the same: our own steps may lack what the words have.
    full = [seconds for seconds, told in ready if told]
    part = [seconds for seconds, told in ready if not told]
    return max((max(values) - min(values) for values in (full, part) if values), default=0.0)


def _ready(loader_s: float | None, data_s: float | None, before_s: float | None) -> tuple[float, bool]:
    wait = loader_s if loader_s is not None else data_s
    return (wait or 0.0) + (before_s or 0.0), before_s is not None


def last_clock_ratio(timeline: Timeline) -> float:
    """Lowest over highest clock of the ranks' last words; 1 where fewer than two tell it."""
    clocks = [t.last.sm_clock_hz for t in timeline.ranks.values() if t.last is not None and t.last.sm_clock_hz]
    clocks += [d.last.sm_clock_hz for d in timeline.owned if d.last is not None and d.last.sm_clock_hz]
    return min(clocks) / max(clocks) if len(clocks) > 1 else 1.0


def _view_of(track: RankTrack, begun_s: float) -> RankView | None:
    """The rank's words since `begun_s`, looked over once for all who ask before its next word."""
    if track.seen is None or track.seen[0] is not track.last or track.seen[1] != begun_s:
        track.seen = (track.last, begun_s, _of_words(track, begun_s))
    view: RankView | None = track.seen[2]
    return view


def _of_words(track: RankTrack, begun_s: float) -> RankView | None:
    if track.last is None or not is_running(track.last) or len(track.telling) < LEAST_WORDS:
        return None
    words = list(track.telling) if track.telling[0].t_s >= begun_s else [w for w in track.telling if w.t_s >= begun_s]
    if len(words) < LEAST_WORDS:
        return None
    waits = _values([_wait(w) for w in words])
    befores = _values([w.pre_collective_s for w in words])
    busy = [w for w in words if w.utilization_ratio is None or w.utilization_ratio >= 0.5]
    clocks = [w.sm_clock_hz for w in busy if w.sm_clock_hz is not None]
    powers = [w.power_w for w in busy if w.power_w is not None]
    latenesses = _latenesses(waits, befores)
    return RankView(
        rank=track.rank,
        waits_s=waits,
        befores_s=befores,
        wait_s=median(list(waits)),
        before_s=median(list(befores)),
        clock_hz=median(clocks) if len(clocks) >= LEAST_WORDS else None,
        power_w=median(powers) if len(powers) >= LEAST_WORDS else None,
        latenesses_s=latenesses,
        lateness_s=median(list(latenesses)),
    )


def _since_s(track: RankTrack, begun_s: float) -> float:
    """When the first of the words that are looked at was said."""
    first_s = begun_s
    for word in islice(reversed(track.window), WORDS):
        if word.t_s < begun_s:
            break
        first_s = word.t_s
    return first_s


def steps_come(timeline: Timeline) -> bool:
    """Whether steps have come lately: words of ranks that stand still are not compared."""
    last, step_s = timeline.last_step, timeline.steps.median_s()
    return last is not None and step_s is not None and timeline.now_s - last.event.t_s <= max(60.0, 3.0 * step_s)


def _own(timeline: Timeline, since_s: float) -> RankView | None:
    records = timeline.steps.window()
    if not timeline.steps.enough(records):
        return None
    records = [r for r in records if r.event.t_s >= since_s]
    waits = _values([r.event.loader_wait_s if r.event.loader_wait_s is not None else r.wait_s for r in records])
    befores = _values([r.event.pre_collective_s for r in records])
    loads = [load for d in timeline.owned if (load := load_of(timeline, d)) is not None]
    clocks = [c for load in loads if (c := load.clock_hz) is not None]
    powers = [p for load in loads if (p := load.power_w) is not None]
    latenesses = _latenesses(waits, befores)
    return RankView(
        rank=timeline.rank,
        waits_s=waits,
        befores_s=befores,
        wait_s=median(list(waits)),
        before_s=median(list(befores)),
        clock_hz=min(clocks, default=None),
        power_w=min(powers, default=None),
        latenesses_s=latenesses,
        lateness_s=median(list(latenesses)),
    )


def _wait(word: Rank) -> float | None:
    return word.loader_wait_s if word.loader_wait_s is not None else word.data_wait_s


def _values(values: list[float | None]) -> tuple[float, ...]:
    """The values where all but a few are told, else none: gaps would compare different moments."""
    known = tuple(v for v in values if v is not None)
    return known if len(known) == len(values) and len(known) >= LEAST_WORDS else ()


def _latenesses(waits: tuple[float, ...], befores: tuple[float, ...]) -> tuple[float, ...]:
    if waits and befores:
        return tuple(w + b for w, b in zip(waits, befores, strict=True))
    return waits or befores
