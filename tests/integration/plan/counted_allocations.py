"""Allocations of a CPU rank as torch's profiler recorded them, without those that a GPU does not make.

Left out, by where they are made: buffers that gloo takes and returns, and what a CPU kernel takes and returns inside one call
(matrix products pack bf16 operands; a sum or concatenation of two dtypes converts an operand first, where CUDA converts as it
reads).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

BACKEND = ("gloo:", "c10d::")
OWN_SCRATCH = {
    *("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::add_", "aten::_chunk_cat", "fsdp::chunk_cat"),
}
MARK = "count:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An allocation (bytes > 0), a free (bytes < 0) or a mark (no bytes).

    Attributes:
        around: (name, identity) of the calls it happened in, outermost first.
    """

    time_ns: int
    bytes: int
    pointer: int
    mark: str
    around: tuple[tuple[str, int], ...]


def mark(name: str) -> None:
    """Name this place in the record."""
    with torch.profiler.record_function(MARK + name):
        pass


def recorded() -> Any:
    """A profiler to run the rank in."""
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)


def events_of(profiler: Any) -> list[Event]:
    """Everything recorded, in order of time."""
    return sorted(_walk(profiler), key=lambda e: e.time_ns)


def _walk(profiler: Any) -> Iterator[Event]:
    waiting: list[tuple[Any, tuple[tuple[str, int], ...]]] = [
        (event, ()) for event in profiler.profiler.kineto_results.experimental_event_tree()
    ]
    while waiting:
        event, around = waiting.pop()
        if event.tag == torch._C._profiler._EventType.Allocation:
            fields = event.extra_fields
            yield Event(time_ns=event.start_time_ns, bytes=fields.alloc_size, pointer=fields.ptr, mark="", around=around)
            continue
        if event.name.startswith(MARK):
            name = event.name.removeprefix(MARK)
            yield Event(time_ns=event.start_time_ns, bytes=0, pointer=0, mark=name, around=around)
        inside = (*around, (event.name, event.id))
        waiting.extend((child, inside) for child in event.children)


def _left_out(birth: Event, death: Event | None) -> bool:
    if any(name.startswith(BACKEND) for name, _ in birth.around):
        return True
    return death is not None and any(call[0] in OWN_SCRATCH and call in death.around for call in birth.around)


def held_after(events: list[Event]) -> Iterator[tuple[Event, int]]:
    """Each event that counts, with the bytes held after it."""
    alive: dict[int, int] = {}
    death_of: dict[int, int] = {}
    for index, event in enumerate(events):
        if event.bytes > 0:
            alive[event.pointer] = index
        elif event.bytes < 0 and event.pointer in alive:
            death_of[alive.pop(event.pointer)] = index
    skipped: set[int] = set()
    for index, event in enumerate(events):
        death = death_of.get(index)
        if event.bytes > 0 and _left_out(event, events[death] if death is not None else None):
            skipped |= {index} if death is None else {index, death}
    held = 0
    for index, event in enumerate(events):
        if index not in skipped:
            held += event.bytes
            yield event, held


PHASES = ("forward", "backward", "optimizer")  # each begins at a mark of its name; micro-steps repeat the first two


def peaks(profiler: Any) -> dict[str, int]:
    """Highest bytes of the last step's forward and backward, and of its optimizer step (marks ``step``, those of the phases,
    ``end``); bytes held where that step begins, and how many more than where the one before began."""
    phase, begins = "", []
    found = dict.fromkeys(PHASES, 0)
    for event, held in held_after(events_of(profiler)):
        if event.mark:
            phase = event.mark
            if phase == "step":
                begins.append(held)
                found = dict.fromkeys(PHASES, 0)
        if phase in found:
            found[phase] = max(found[phase], held)
    return {
        "forward_backward_bytes": max(found["forward"], found["backward"]),
        "optimizer_bytes": found["optimizer"],
        "held_bytes": begins[-1],
        "drift_bytes": begins[-1] - begins[-2],
    }
