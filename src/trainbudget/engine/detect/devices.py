"""Questions about devices that several detectors ask. Each answers None or nothing where it does not know."""

from __future__ import annotations

from trainbudget.engine.timeline import Timeline
from trainbudget.engine.tracks.device import UNSUPPORTED_CODES, DeviceTrack

#: Readings are stale after this many periods (contract), and never before half a minute: one slow query is no silence.
STALE_PERIODS = 3.0
STALE_FLOOR_S = 30.0
#: Steps are judged by the readings of this time: single pauses of a minute weigh little in it.
STEPS_WINDOW_S = 300.0
LEAST_READINGS = 5
#: NVML codes about the driver's library as a whole, not about a device: 9 driver not loaded, 12 library not found, 18 version.
LIBRARY_CODES = frozenset({9, 12, 18})


def spacing_s(timeline: Timeline, device: DeviceTrack) -> float:
    """Seconds between readings: as promised in the header or as they came lately (a sampler slows down at rest)."""
    promised = timeline.header.sample_period_s or 1.0
    window = device.window
    count = min(10, len(window) - 1)
    if count < 3:
        return promised
    return max(promised, (window[-1].t_s - window[-1 - count].t_s) / count)


def stale_after_s(timeline: Timeline, device: DeviceTrack) -> float:
    return max(STALE_FLOOR_S, STALE_PERIODS * spacing_s(timeline, device))


def fresh(timeline: Timeline, device: DeviceTrack) -> bool:
    """Whether the device has answered lately: old values are not today's."""
    last_s = device.last_answer_s
    return last_s is not None and timeline.since(last_s) <= stale_after_s(timeline, device)


def mean_utilization(timeline: Timeline, device: DeviceTrack) -> float | None:
    """Mean of the last minute, of the last ten readings where they are rarer; None when unknown or stale."""
    if not fresh(timeline, device):
        return None
    value = device.utilization_last_minute()
    if value is None:
        value = device.utilization_mean(timeline.now_s - 11.0 * spacing_s(timeline, device), minimum=5)
    return None if value is None else max(0.0, value)  # a running sum may end a hair below zero


def busiest_utilization(timeline: Timeline) -> float | None:
    """Of the busiest owned GPU: one that works is enough to say that the run works."""
    values = [mean_utilization(timeline, d) for d in timeline.owned]
    return max((v for v in values if v is not None), default=None)


def steps_utilization(timeline: Timeline) -> tuple[float, float] | None:
    """Mean and median utilization of the busiest owned GPU while steps were going on, over the last five minutes.

    Evaluations and saves are left out, they say nothing about the steps. The median passes over single pauses, the mean
    counts every wait. None outside of training, and while too few readings tell.
    """
    run = timeline.run
    if not run.training or run.open or run.session is None or run.session.first_step_end_s is None:
        return None
    since_s = max(timeline.now_s - STEPS_WINDOW_S, run.session.first_step_end_s)
    phases = [(p.start_s, p.end_s) for p in run.closed if p.end_s > since_s]
    best: tuple[float, float] | None = None
    for device in timeline.owned:
        if not fresh(timeline, device):
            continue
        seen = [
            s.utilization_ratio
            for s in device.since(since_s)
            if s.utilization_ratio is not None and not (phases and _inside(s.t_s, phases))
        ]
        if len(seen) >= LEAST_READINGS:
            known = (sum(seen) / len(seen), sorted(seen)[len(seen) // 2])
            best = known if best is None or known > best else best
    return best


def _inside(t_s: float, phases: list[tuple[float, float]]) -> bool:
    return any(begin <= t_s <= end for begin, end in phases)


def everything_fails(device: DeviceTrack) -> bool:
    """Whether the newest reading answered nothing, and what is wrong is more than "not supported"."""
    if device.last_reading_s is None or not device.errors:
        return False
    if device.last_answer_s is not None and device.last_answer_s >= device.last_reading_s:
        return False
    return any(code not in UNSUPPORTED_CODES for code in device.errors.values())


def lost_code(timeline: Timeline, device: DeviceTrack) -> int | None:
    """The NVML code by which a device counts as lost, or None.

    15, 16 and 28 say it themselves. Any other error of every query says it only together with a hang; a code about the
    driver's library says nothing about the device.
    """
    if device.lost_since_s is not None:
        return device.lost_code
    if not device.errors or timeline.stalled_since_s is None or not everything_fails(device):
        return None
    codes = [c for c in device.errors.values() if c not in UNSUPPORTED_CODES and c not in LIBRARY_CODES]
    return codes[0] if codes else None


def any_lost(timeline: Timeline) -> bool:
    """Whether one of the run's own devices is lost."""
    return any(lost_code(timeline, d) is not None for d in timeline.owned)
