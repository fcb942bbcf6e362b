"""The roofline: which limit binds, what intervals mean, what a measured step does, what communication costs."""

from __future__ import annotations

import pytest

from trainbudget.plan import step_time
from trainbudget.plan.hardware import require_gpu
from trainbudget.plan.step_time import Calibration, calibration_of, estimate_step_time, exposed_communication_s, operator_s
from trainbudget.plan.tracing.trace import OperatorCost, Parameter, Phase, Trace
from trainbudget.plan.train_spec import TrainSpec

A100 = require_gpu("A100-80GB")
IDEAL = Calibration(matmul=1.0, attention=0.5, memory=1.0, low=0.9, high=1.2, source="test", own=True)


def cost(**values):
    defaults = {"name": "mm", "kind": "matmul", "phase": Phase.FORWARD, "dtype": "bfloat16", "flops": 0, "bytes": 0, "count": 1}
    return OperatorCost(**{**defaults, **values})


def trace_of(*operators, elements=10**9):
    return Trace(
        events=[],
        parameters=[Parameter(name="w", shape=(elements,), elements=elements, item_bytes=4, trainable=True)],
        operators=list(operators),
    )


def test_arithmetic_memory_or_the_floor_binds():
    assert operator_s(cost(flops=312 * 10**12, bytes=1), A100, "bf16", IDEAL) == pytest.approx(1.0)
    assert operator_s(cost(flops=1, bytes=2039 * 10**9), A100, "bf16", IDEAL) == pytest.approx(1.0)
    assert operator_s(cost(flops=1, bytes=1), A100, "bf16", IDEAL) == step_time.KERNEL_FLOOR_S
    assert operator_s(cost(kind="attention", flops=312 * 10**12), A100, "bf16", IDEAL) == pytest.approx(2.0)


def test_fp32_operators_run_at_the_fp32_rate_and_tf32_where_the_run_allows():
    fp32 = cost(dtype="float32", flops=195 * 10**11)
    assert operator_s(fp32, A100, "bf16", IDEAL) == pytest.approx(1.0)
    assert operator_s(fp32, A100, "tf32", IDEAL) == pytest.approx(19.5 / 156)


def test_views_cost_nothing():
    assert operator_s(cost(name="_unsafe_view", kind="memory", bytes=10**12), A100, "bf16", IDEAL) == 0.0


def test_a_step_is_accumulated_micro_steps_and_one_optimizer_step():
    trace = trace_of(
        cost(flops=312 * 10**10),
        cost(phase=Phase.BACKWARD, flops=2 * 312 * 10**10),
        cost(phase=Phase.OPTIMIZER, kind="memory", bytes=2039 * 10**7),
    )
    spec = TrainSpec(micro_batch=2, sequence_length=100, gradient_accumulation=4, precision="bf16")
    step = estimate_step_time(trace, A100, spec, calibration=IDEAL)
    assert (step.forward_s, step.backward_s, step.optimizer_s) == pytest.approx((0.04, 0.08, 0.01))
    assert step.step.value == pytest.approx(0.13)
    assert (step.step.low, step.step.high) == pytest.approx((0.13 * 0.9, 0.13 * 1.2))
    assert step.tokens_per_s == pytest.approx(800 / 0.13)
    assert step.mfu == pytest.approx(0.12 / 0.13)


def test_recomputation_is_time_but_not_model_flops():
    plain = trace_of(cost(flops=10**12), cost(phase=Phase.BACKWARD, flops=2 * 10**12))
    again = trace_of(cost(flops=10**12), cost(phase=Phase.BACKWARD, flops=3 * 10**12))
    spec = TrainSpec(precision="bf16", activation_checkpointing="non_reentrant")
    assert step_time.model_flops(again, spec) == step_time.model_flops(plain, TrainSpec(precision="bf16"))


def test_one_measured_step_replaces_the_estimate():
    step = estimate_step_time(trace_of(cost(flops=10**12)), A100, TrainSpec(precision="bf16"), measured_s=0.5)
    assert (step.step.value, step.step.source) == (0.5, "measured")
    assert step.step.low < 0.5 < step.step.high < 0.6


def test_many_small_kernels_are_bound_by_the_host():
    step = estimate_step_time(trace_of(cost(kind="memory", bytes=1, count=1000)), A100, TrainSpec(), calibration=IDEAL)
    assert step.forward_s == pytest.approx(1000 * step_time.HOST_FORWARD_S)


def test_communication_grows_with_the_strategy():
    trace = trace_of(elements=10**9)
    one = exposed_communication_s(trace, A100, TrainSpec(precision="bf16"))[0]
    ddp = exposed_communication_s(trace, A100, TrainSpec(precision="bf16", strategy="ddp", world_size=8))[0]
    fsdp = exposed_communication_s(trace, A100, TrainSpec(precision="bf16", strategy="fsdp", world_size=8))[0]
    assert one == 0.0
    assert ddp == pytest.approx(2 * 4e9 * 7 / 8 / 240e9)  # fp32 gradients, all-reduced
    assert fsdp == pytest.approx(3 * 2e9 * 7 / 8 / 240e9)  # bf16: gathered twice, reduced once


def test_a_card_without_calibration_says_so_and_is_wider():
    own, other = calibration_of(A100, "bf16"), calibration_of(require_gpu("L4"), "bf16")
    assert own.own
    assert not other.own
    assert "not calibrated for L4" in other.source
    assert other.low < own.low
    assert other.high > own.high


def test_bf16_without_units_is_noted():
    step = estimate_step_time(trace_of(cost(flops=10**12)), require_gpu("T4"), TrainSpec(precision="bf16"))
    assert any("emulated" in n for n in step.notes)
