"""The part of a trace that a sharding strategy replays: one step, the parameters, and what the step before left behind."""

from __future__ import annotations

from dataclasses import dataclass

from trainbudget.plan.tracing.trace import Category, Event, Kind, Parameter, Trace

ITEM_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One recorded step.

    Attributes:
        events: of the last traced step.
        unit_parameters: indices of the parameters of each unit; unit 0 is what no other unit holds.
        buffer_bytes: of each buffer, alive for the whole run.
        carried: storage -> (bytes, category) left over from the step before (the loss, kept inputs).
    """

    parameters: list[Parameter]
    events: list[Event]
    unit_parameters: list[list[int]]
    buffer_bytes: list[int]
    carried: dict[int, tuple[int, Category]]

    def unit_elements(self, unit: int, *, trainable: bool = False) -> int:
        """Elements of the unit's parameters."""
        return sum(
            self.parameters[i].elements for i in self.unit_parameters[unit] if self.parameters[i].trainable or not trainable
        )

    @property
    def trainable(self) -> list[Parameter]:
        """Parameters that train."""
        return [p for p in self.parameters if p.trainable]


def timeline_of(trace: Trace) -> Timeline:
    """The last step of a trace that was recorded for sharded replay."""
    last = max((i for i, e in enumerate(trace.events) if e[0] == Kind.STEP), default=0)
    alive: dict[int, tuple[int, Category]] = {}
    for kind, a, b, c in trace.events[:last]:
        if kind == Kind.MALLOC:
            alive[a] = (b, Category(c))
        elif kind == Kind.FREE:
            alive.pop(a, None)
        elif kind == Kind.RETAG and a in alive:
            alive[a] = (alive[a][0], Category(c))
    owned = {p.storage for p in trace.parameters} | {
        a for a, (_, c) in alive.items() if c in (Category.PARAMETERS, Category.GRADIENTS)
    }
    buffers = {a: b for a, (b, c) in alive.items() if c is Category.BUFFERS}
    units: list[list[int]] = [[] for _ in trace.units]
    for index, parameter in enumerate(trace.parameters):
        units[parameter.unit].append(index)
    return Timeline(
        parameters=trace.parameters,
        events=[e for e in trace.events[last:] if not (e[0] == Kind.FREE and (e[1] in owned or e[1] in buffers))],
        unit_parameters=units,
        buffer_bytes=list(buffers.values()),
        carried={a: v for a, v in alive.items() if a not in owned and a not in buffers},
    )
