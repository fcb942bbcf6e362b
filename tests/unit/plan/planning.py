"""A tracer without torch: memory and operators that grow with the batch, for the planner's own logic."""

from __future__ import annotations

import datetime

from trainbudget.plan.plan_file import plan_of
from trainbudget.plan.planner import Planner
from trainbudget.plan.script.protocol import Facts
from trainbudget.plan.tracing.failure import TraceFailed
from trainbudget.plan.tracing.trace import Category, Kind, OperatorCost, Parameter, Phase, Trace
from trainbudget.plan.train_spec import TargetGpu, TrainSpec

GIB = 1024**3


class FakeTracer:
    """Weights of 4 GiB; activations of 10 GiB an example at 1024 tokens, a tenth of it with checkpointing."""

    def __init__(self, facts: Facts | None = None, failing: str | None = None) -> None:
        self.facts = facts or Facts(framework="plan", title="fake · full", spec={})
        self.asked: list[TrainSpec] = []
        self.shapes: list[tuple[TrainSpec, bool]] = []
        self._failing = failing

    def trace(self, spec: TrainSpec, target: TargetGpu, *, longest: bool = True) -> Trace:
        self.asked.append(spec)
        self.shapes.append((spec, longest))
        if self._failing is not None:
            raise TraceFailed(self._failing)
        part = 0.1 if spec.activation_checkpointing else 1.0
        activations = int(10 * GIB * part * spec.micro_batch * spec.sequence_length / 1024)
        tokens = spec.micro_batch * spec.sequence_length
        events = [
            (Kind.MALLOC, 0, 4 * GIB, Category.PARAMETERS),
            (Kind.PHASE, Phase.FORWARD, 0, 0),
            (Kind.STEP, 0, 0, 0),
            (Kind.MALLOC, 1, activations, Category.ACTIVATIONS),
            (Kind.PHASE, Phase.BACKWARD, 0, 0),
            (Kind.FREE, 1, 0, 0),
            (Kind.BACKWARD_END, 0, 0, 0),
            (Kind.PHASE, Phase.OPTIMIZER, 0, 0),
        ]
        forward = OperatorCost(
            name="mm", kind="matmul", phase=Phase.FORWARD, dtype="bfloat16", flops=2 * tokens * 10**6, bytes=10**6, count=1000
        )
        factor = 3 if spec.activation_checkpointing else 2
        backward = OperatorCost(
            name="mm",
            kind="matmul",
            phase=Phase.BACKWARD,
            dtype="bfloat16",
            flops=2 * tokens * 10**6,
            bytes=10**6,
            count=1000 * factor,
        )
        return Trace(
            events=events,
            parameters=[Parameter(name="w", shape=(2 * GIB,), elements=2 * GIB, item_bytes=2, trainable=True, storage=0)],
            operators=[forward, backward],
            spec=spec,
            steps=1,
        )


TODAY = datetime.date(2026, 11, 30)


def request(vocabulary="plan", gpu="A100-80GB", price="2.00 USD/h", **train):
    tables = {
        "model": {"config": {"model_type": "llama"}},
        "train": {"micro_batch": 2, "sequence_length": 1024, "precision": "bf16", **train},
        "gpu": {"name": gpu, **({"price_per_hour": price} if price else {})},
    }
    return plan_of(tables, vocabulary=vocabulary)


def planned(wanted, tracer=None, **options):
    return Planner(tracer=tracer or FakeTracer(), today=TODAY, **options).plan(wanted)
