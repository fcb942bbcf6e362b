"""Measurements several efficiency detectors share; each is None while it is not known."""

from __future__ import annotations

from trainbudget.engine.timeline import Timeline
from trainbudget.engine.tracks.device import DeviceTrack

#: A context in which no framework's memory lives: 250-500 MiB on NVIDIA cards (PyTorch issues 107667 and 109888).
CONTEXT_BYTES = 0.5 * 1024**3


def steps_flow(timeline: Timeline) -> bool:
    """Whether steps are coming: the last one is not older than a few of them take."""
    newest, median_s = timeline.steps.last_end_s, timeline.steps.median_s()
    if newest is None or median_s is None or not timeline.run.training or timeline.run.open:
        return False
    return timeline.wall_s() - newest <= max(5.0 * median_s, 10.0)


def tokens_per_s(timeline: Timeline) -> float | None:
    """Tokens a second inside the steps of the window."""
    records = timeline.steps.window()
    if not timeline.steps.enough(records) or any(r.event.tokens is None for r in records):
        return None
    seconds = sum(r.duration_s * r.count for r in records)
    return sum(r.event.tokens or 0.0 for r in records) / seconds if seconds > 0.0 else None


def need_bytes(device: DeviceTrack) -> float | None:
    """What the device has had to hold at its worst moment: allocated at the peak and the context, else what was used.

    The allocator's cache is no need: it shrinks where there is less.
    """
    if device.peak_allocated_bytes is not None:
        context = device.last.context_bytes if device.last is not None else None
        return device.peak_allocated_bytes + (context if context is not None else CONTEXT_BYTES)
    return device.peak_used_bytes


def fullest(timeline: Timeline) -> tuple[DeviceTrack, float, float] | None:
    """The owned device with the least room: it, its need and its limit in bytes. None unless every device is known."""
    found: tuple[DeviceTrack, float, float] | None = None
    for device in timeline.owned:
        need, limit = need_bytes(device), device.limit_bytes
        if need is None or not limit or device.info.unified_memory:
            return None
        if found is None or need / limit > found[1] / found[2]:
            found = (device, need, limit)
    return found


def rest_bytes(device: DeviceTrack) -> float | None:
    """What stays allocated between steps: weights, gradients, optimizer state."""
    allocator = device.allocator
    return None if allocator is None or allocator.at == "sample" else allocator.allocated_bytes


def capability(device: DeviceTrack) -> float | None:
    """Compute capability as a number, e.g. 8.0."""
    text = device.info.compute_capability
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None


def settled(timeline: Timeline, steps: float) -> bool:
    """Whether the session has done so many steps beyond its warm-up that peaks have been seen."""
    return timeline.run.training and not timeline.steps.warming and timeline.steps.session_steps >= steps
