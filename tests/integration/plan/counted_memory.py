"""Bytes a piece of work takes on the CPU, by torch's own profiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def counted(work: Callable[[], Any]) -> tuple[int, Any]:
    """(highest bytes allocated above the start, what ``work`` returned), by torch's own profiler."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = work()
    found, waiting = [], list(profiler.profiler.kineto_results.experimental_event_tree())
    while waiting:
        event = waiting.pop()
        waiting.extend(event.children)
        if event.tag == torch._C._profiler._EventType.Allocation:
            found.append((event.start_time_ns, event.extra_fields.alloc_size))
    now = highest = 0
    for _, size in sorted(found):
        now += size
        highest = max(highest, now)
    return highest, result
