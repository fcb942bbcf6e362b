"""Predictions from handmade traces: what is counted, when it peaks, whether it fits. No torch."""

from __future__ import annotations

import msgspec
import pytest

from trainbudget.errors import ConfigError
from trainbudget.plan.allocator import GIB, MIB, AllocatorOptions
from trainbudget.plan.memory import (
    EvalSpec,
    TargetGpu,
    Trace,
    TrainSpec,
    decode_trace,
    encode_trace,
    max_micro_batch,
    max_sequence_length,
    predict_memory,
    spec_of,
)
from trainbudget.plan.tracing.trace import Category, Kind, OperatorCost, Parameter, Phase
from trainbudget.plan.uncertainty import UncertainPart, interval

CUBLAS_BYTES = 8_519_680
GPU = TargetGpu(memory_bytes=24 * GIB, compute_capability=(8, 0))


def step_events(activation_bytes: int) -> list[tuple[int, int, int, int]]:
    """1 GiB of parameters, activations, gradients as large as the parameters, two states made by the first step."""
    events: list[tuple[int, int, int, int]] = [(Kind.MALLOC, 0, GIB, Category.PARAMETERS)]
    for step in range(2):
        base = 10 * (step + 1)
        events += [
            (Kind.STEP, step, 0, 0),
            (Kind.PHASE, Phase.FORWARD, 0, 0),
            (Kind.MALLOC, base, activation_bytes, Category.ACTIVATIONS),
            (Kind.PHASE, Phase.BACKWARD, 0, 0),
            (Kind.WORKSPACE, 0, 64 * MIB, 1),
            (Kind.MALLOC, base + 1, GIB, Category.TEMPORARIES),
            (Kind.RETAG, base + 1, 0, Category.GRADIENTS),
            (Kind.GRADIENT, base + 1, 0, 0),
            (Kind.FREE, base, 0, 0),
            (Kind.BACKWARD_END, 0, 0, 0),
            (Kind.PHASE, Phase.FORWARD, 0, 0),
            (Kind.PHASE, Phase.OPTIMIZER, 0, 0),
        ]
        if step == 0:
            events += [(Kind.MALLOC, 1, 2 * GIB, Category.TEMPORARIES), (Kind.RETAG, 1, 0, Category.OPTIMIZER_STATE)]
        events.append((Kind.FREE, base + 1, 0, 0))
    return events


def handmade(spec: TrainSpec | None = None, activation_bytes: int = 4 * GIB, **changes: object) -> Trace:
    parameter = Parameter(name="w", shape=(1024, 262144), elements=GIB // 4, item_bytes=4, trainable=True, storage=0, graded=True)
    trace = Trace(events=step_events(activation_bytes), parameters=[parameter], spec=spec or TrainSpec())
    return msgspec.structs.replace(trace, **changes)


def test_the_peak_is_in_the_backward_of_the_second_step() -> None:
    found = predict_memory(handmade(), GPU)
    assert found.allocated.value == 8 * GIB + 2 * CUBLAS_BYTES
    assert found.peak_phase == "backward"
    assert found.categories["activations"] == 4 * GIB
    assert found.categories["optimizer_state"] == 2 * GIB
    assert found.categories["workspace"] == 2 * CUBLAS_BYTES
    assert sum(found.categories.values()) == found.allocated.value
    assert found.peak_by_phase["forward"] == 7 * GIB + 2 * CUBLAS_BYTES
    assert found.peak_by_phase["optimizer"] == 4 * GIB + 2 * CUBLAS_BYTES


def test_intervals_hold_the_value_and_grow_from_allocated_to_device() -> None:
    found = predict_memory(handmade(), GPU)
    for part in (found.allocated, found.reserved, found.device):
        assert part.low <= part.value <= part.high
    assert found.allocated.value <= found.reserved.value < found.device.value
    assert all(reason for reason in found.reasons)


def test_a_measured_context_replaces_the_estimate() -> None:
    estimated = predict_memory(handmade(), GPU)
    measured = predict_memory(handmade(), GPU, context_bytes=600 * MIB)
    assert measured.device.value == measured.reserved.value + 600 * MIB
    assert measured.device.high - measured.device.low < estimated.device.high - estimated.device.low


def test_the_verdict_is_open_inside_the_interval() -> None:
    device = predict_memory(handmade(), GPU).device
    for memory, fits in ((device.high, True), (device.value, None), (6 * GIB, False)):
        assert predict_memory(handmade(), TargetGpu(memory_bytes=memory, compute_capability=(8, 0))).fits is fits


def test_hopper_keeps_larger_cublas_workspaces() -> None:
    hopper = TargetGpu(memory_bytes=80 * GIB, compute_capability=(9, 0))
    more = predict_memory(handmade(), hopper).allocated.value - predict_memory(handmade(), GPU).allocated.value
    assert more == 2 * (32 * MIB - CUBLAS_BYTES)


def test_ddp_adds_one_copy_of_the_gradients_and_views_take_it_back() -> None:
    alone = predict_memory(handmade(), GPU)
    ddp = predict_memory(handmade(TrainSpec(strategy="ddp", world_size=2)), GPU)
    views = predict_memory(
        handmade(TrainSpec(strategy="ddp", world_size=2, strategy_options={"gradient_as_bucket_view": True})), GPU
    )
    assert ddp.peak_by_phase["optimizer"] - alone.peak_by_phase["optimizer"] == GIB
    assert views.peak_by_phase["optimizer"] == alone.peak_by_phase["optimizer"]
    assert ddp.categories["communication"] == GIB


def test_kept_predictions_of_an_evaluation_exist_twice_while_they_are_joined() -> None:
    events = [*step_events(GIB), (Kind.PHASE, Phase.EVALUATION, 0, 0)]
    spec = TrainSpec(evaluation=EvalSpec(batches=10, keep_logits=True))
    found = predict_memory(handmade(spec, events=events, logits_bytes=GIB), GPU)
    assert found.peak_by_phase["evaluation"] == (3 + 9 + 1 + 10) * GIB + 2 * CUBLAS_BYTES
    fewer = TrainSpec(evaluation=EvalSpec(batches=10, keep_logits=True, accumulation_steps=2))
    found = predict_memory(handmade(fewer, events=events, logits_bytes=GIB), GPU)
    assert found.peak_by_phase["evaluation"] == (3 + 1 + 1 + 2) * GIB + 2 * CUBLAS_BYTES


def test_what_was_not_understood_widens_the_interval_and_is_said() -> None:
    known, unknown = predict_memory(handmade(), GPU), predict_memory(handmade(not_understood=["op x"]), GPU)
    assert unknown.not_understood == ("op x",)
    assert unknown.allocated.high > known.allocated.high


def test_convolutions_leave_room_for_cudnn() -> None:
    cost = OperatorCost(name="convolution", kind="convolution", phase=1, dtype="float32", flops=1, bytes=GIB, count=1)
    assert predict_memory(handmade(operators=[cost]), GPU).allocated.high >= predict_memory(handmade(), GPU).allocated.value + GIB


def test_expandable_segments_reserve_no_more() -> None:
    classic = predict_memory(handmade(), GPU)
    expandable = predict_memory(handmade(), GPU, allocator_options=AllocatorOptions(expandable_segments=True))
    assert expandable.reserved.value <= classic.reserved.value
    assert expandable.allocated.value == classic.allocated.value


def test_a_trace_survives_serialisation() -> None:
    trace = handmade(TrainSpec(peft={"type": "lora", "r": 8}))
    again = decode_trace(encode_trace(trace))
    assert again == msgspec.structs.replace(trace, events=[tuple(e) for e in trace.events])
    assert again.trainable_elements == GIB // 4


def test_the_search_finds_the_last_batch_that_fits() -> None:
    traced: list[int] = []

    def trace_of(spec: TrainSpec) -> Trace:
        traced.append(spec.micro_batch)
        return handmade(spec, activation_bytes=spec.micro_batch * GIB)

    spec = TrainSpec(micro_batch=4)
    found = max_micro_batch(trace_of, spec, GPU)
    assert found is not None
    assert predict_memory(trace_of(spec.with_shape(micro_batch=found)), GPU).device.value <= GPU.usable_bytes
    assert predict_memory(trace_of(spec.with_shape(micro_batch=found + 1)), GPU).device.value > GPU.usable_bytes
    assert len(traced) - 2 <= 5


def test_the_search_says_zero_when_one_example_does_not_fit() -> None:
    small = TargetGpu(memory_bytes=2 * GIB, compute_capability=(8, 0))
    assert max_micro_batch(lambda s: handmade(s, activation_bytes=s.micro_batch * GIB), TrainSpec(micro_batch=8), small) == 0


def test_the_longest_sequence_is_a_multiple() -> None:
    def trace_of(spec: TrainSpec) -> Trace:
        return handmade(spec, activation_bytes=spec.sequence_length**2 * 512)

    found = max_sequence_length(trace_of, TrainSpec(sequence_length=512), GPU)
    assert found is not None
    assert found % 64 == 0
    fitting = predict_memory(trace_of(TrainSpec(sequence_length=found)), GPU)
    assert 0.95 * GPU.usable_bytes < fitting.device.value <= GPU.usable_bytes


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"micro_batch": 0}, "micro_batch"),
        ({"quantization": "nf4"}, "peft"),
        ({"world_size": 8}, "strategy"),
        ({"task": "poetry"}, "task"),
        ({"precision": "fp8"}, "precision"),
        ({"learning_rate": 1}, "learning_rate"),
    ],
)
def test_contradictions_are_refused_in_one_line(values: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        spec_of(values)
    assert "\n" not in str(caught.value)


def test_independent_parts_add_as_squares() -> None:
    parts = [UncertainPart(reason="a", less_bytes=3, more_bytes=30), UncertainPart(reason="b", less_bytes=4, more_bytes=40)]
    found = interval(100, parts)
    assert (found.low, found.value, found.high) == (95, 100, 150)
    assert interval(100, parts, floor=97).low == 97
