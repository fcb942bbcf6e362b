"""A tracer for models of many layers that are alike: after the first trace, which is of the whole model, it traces few layers.

What it makes up for the rest is compared with that first trace, event by event, and for every other kind of step (another
optimizer, adapter, checkpointing) with a trace of a few layers more; where the two differ, or where a configuration cannot be
continued, traces are of the whole model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from trainbudget.plan.layers.config import depth_of
from trainbudget.plan.layers.depth import deeper, same_trace
from trainbudget.plan.script.protocol import Facts
from trainbudget.plan.tracer import ParallelTracer
from trainbudget.plan.tracing.failure import TraceFailed
from trainbudget.plan.tracing.trace import Trace
from trainbudget.plan.train_spec import TargetGpu, TrainSpec

#: With fewer layers than this two shallow traces and their comparison cost as much as the whole one.
LEAST_LAYERS = 8
SHALLOW = 2
#: Layers of the trace with which a kind of step is proven: three made-up layers are compared, and the others are as they are.
PROOF = 5


class LayerTracer:
    """Answers like the tracer it asks, from fewer layers where that is exact."""

    def __init__(self, tracer: ParallelTracer, model_config: Any) -> None:
        self._tracer = tracer
        depth = depth_of(model_config) if isinstance(model_config, Mapping) else None
        self._depth = depth if depth is not None and depth >= LEAST_LAYERS else None
        self._first: tuple[TrainSpec, TargetGpu, Trace] | None = None
        self._proven: bool | None = None
        self._kinds: dict[bytes, bool] = {}  # kind of step, whatever its shape -> can be continued
        self._made: dict[bytes, Trace] = {}

    @property
    def facts(self) -> Facts:
        """Of the tracer it asks."""
        return self._tracer.facts

    def trace(self, spec: TrainSpec, target: TargetGpu, *, longest: bool = True) -> Trace:
        """The traced step, or TraceFailed."""
        if self._depth is None:
            return self._tracer.trace(spec, target, longest=longest)
        if self._first is None or self._is_first(spec, target):
            # The shallow ones beside the whole one: it is proven as soon as another trace is wanted.
            self._tracer.ahead([spec, *_shallow(spec)], target)
            trace = self._tracer.trace(spec, target, longest=longest)
            self._first = (spec, target, trace)
            return trace
        if self._proven is None:
            made = self._continued(self._first[0], self._first[1])
            self._proven = made is not None and same_trace(made, self._first[2])
        made = self._continued(spec, target) if self._proven else None
        return self._tracer.trace(spec, target, longest=longest) if made is None else made

    def _continued(self, spec: TrainSpec, target: TargetGpu) -> Trace | None:
        key = msgspec.msgpack.encode((spec, target.capability))
        if key in self._made:
            return self._made[key]
        kind = _key(spec.with_shape(micro_batch=1, sequence_length=1))
        if self._depth is None or not self._kinds.get(kind, True):
            return None
        unproven = kind not in self._kinds and not self._is_first(spec, target)
        shallow = _shallow(spec, prove=unproven)
        self._tracer.ahead(shallow, target)
        try:
            few, more, *proof = (self._tracer.trace(s, target) for s in shallow)
        except TraceFailed:
            return None
        made = deeper(few, more, self._depth - SHALLOW)
        self._kinds[kind] = made is not None and all(_holds(few, more, deep) for deep in proof)
        if made is None or not self._kinds[kind]:
            return None
        self._made[key] = msgspec.structs.replace(made, spec=spec)
        return self._made[key]

    def _is_first(self, spec: TrainSpec, target: TargetGpu) -> bool:
        """Whether it is the step that was traced whole: its comparison with the whole trace is the better proof."""
        return self._first is not None and self._first[0] == spec and self._first[1].capability == target.capability


def _holds(few: Trace, more: Trace, deep: Trace) -> bool:
    """Whether the trace of `PROOF` layers is what the shallow ones are continued to."""
    continued = deeper(few, more, PROOF - SHALLOW)
    return continued is not None and same_trace(continued, deep)


def _shallow(spec: TrainSpec, *, prove: bool = False) -> list[TrainSpec]:
    layers = (SHALLOW, SHALLOW + 1, PROOF) if prove else (SHALLOW, SHALLOW + 1)
    return [msgspec.structs.replace(spec, layers=n) for n in layers]


def _key(spec: TrainSpec) -> bytes:
    return msgspec.msgpack.encode(spec)
