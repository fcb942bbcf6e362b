"""How long an optimizer step takes: a roofline over the operators of a traced step, with calibrated efficiencies and an interval.

A call takes the longest of its arithmetic, its memory traffic and a kernel's floor; a phase takes no less than the host needs to
launch it. Efficiencies per card and dtype: `data/calibration.json`, fitted by `bench/step_time` on published throughputs;
others use the median of those, with a wider interval. One measured step replaces the whole estimate.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

import msgspec

from trainbudget.plan.hardware import GpuSpec
from trainbudget.plan.tracing.trace import OperatorCost, Phase, Trace
from trainbudget.plan.train_spec import TrainSpec

#: Shortest kernel, launch to launch, seconds: what back-to-back empty kernels take on current NVIDIA cards.
KERNEL_FLOOR_S = 4e-6
#: What eager PyTorch and its modules need on the host for one operator, seconds; backward runs in C++. Fast servers: about half.
HOST_FORWARD_S, HOST_BACKWARD_S = 12e-6, 7e-6
#: Operators that only make another view or hand out memory: no kernel runs.
_FREE = frozenset(("_unsafe_view", "view", "_reshape_alias", "expand", "empty", "empty_like", "empty_strided", "new_empty"))
#: Part of a link's one-way peak that large collectives reach (NCCL bus bandwidth on NVLink is 75-85 % of it).
LINK_EFFICIENCY = 0.8
#: Between nodes: a network adapter for each GPU, 200 Gbit/s beside Ampere, 400 Gbit/s beside later cards: the usual 8-GPU node.
ADAPTER_BYTES_PER_S = {"old": 25e9, "new": 50e9}
NODE_SIZE = 8
#: Part of communication that shows as time. Collectives run beside the kernels but take their processors and bandwidth: on 142
#: published FSDP runs "nothing is hidden" fits best on all three cards (`bench/step_time`), on the H100 by a factor of two.
EXPOSED = 1.0
#: A measured step repeats within this (clocks, data of other lengths).
MEASURED_SPREAD = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A number with its 90 % interval and where it is from."""

    value: float
    low: float
    high: float
    source: str

    def times(self, factor: float) -> Estimate:
        """The same estimate of `factor` times the quantity."""
        return Estimate(value=self.value * factor, low=self.low * factor, high=self.high * factor, source=self.source)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Fractions of peak that a card reaches, and the 90 % interval of measured over predicted time."""

    matmul: float
    attention: float
    memory: float
    low: float
    high: float
    source: str
    own: bool  # of this very card


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """One optimizer step, seconds. `mfu` counts the model's own FLOPs, without recomputation."""

    step: Estimate
    forward_s: float  # all micro-steps together
    backward_s: float
    optimizer_s: float
    communication_s: float  # exposed only
    model_flops: float  # of one GPU and optimizer step
    mfu: float | None
    tokens_per_s: float | None  # of the whole job
    calibration: Calibration
    notes: tuple[str, ...]


class _CardRow(msgspec.Struct, frozen=True, kw_only=True):
    gpu: str
    precisions: tuple[str, ...]
    matmul: float
    attention: float
    memory: float
    low: float
    high: float
    rows: int


class _Table(msgspec.Struct, frozen=True, kw_only=True):
    cards: tuple[_CardRow, ...]
    default: _CardRow


@lru_cache(maxsize=1)
def _table() -> _Table:
    data = resources.files("trainbudget.plan").joinpath("data/calibration.json").read_bytes()
    return msgspec.json.decode(data, type=_Table)


def calibration_of(gpu: GpuSpec, precision: str) -> Calibration:
    """The efficiencies for a card and precision; the other cards' median, and a wider interval, where it has none of its own."""
    family = {"bf16_pure": "bf16", "fp16_pure": "fp16"}.get(precision, precision)
    own = next((r for r in _table().cards if r.gpu == gpu.name and family in r.precisions), None)
    row = own or _table().default
    source = f"calibrated on {row.rows} published runs" if own else f"not calibrated for {gpu.name} {family}: as other cards"
    return Calibration(
        matmul=row.matmul,
        attention=row.attention,
        memory=row.memory,
        low=row.low,
        high=row.high,
        source=source,
        own=own is not None,
    )


def operator_s(operator: OperatorCost, gpu: GpuSpec, precision: str, calibration: Calibration) -> float:
    """Seconds of one call of an operator on the GPU."""
    if operator.name in _FREE:
        return 0.0
    peak = gpu.peak(_rate_of(operator.dtype, precision)) or 0.0
    efficiency = calibration.attention if operator.kind == "attention" else calibration.matmul
    arithmetic = operator.flops / (peak * efficiency) if peak and operator.kind != "memory" else 0.0
    traffic = operator.bytes / (gpu.bandwidth_bytes_per_s * calibration.memory)
    return max(arithmetic, traffic, KERNEL_FLOOR_S)


def _rate_of(dtype: str, precision: str) -> str:
    """The precision whose peak an operator of this dtype runs at (fp32 tensors multiply in tf32 where the run allows it)."""
    if dtype in ("bfloat16", "float16"):
        return {"bfloat16": "bf16", "float16": "fp16"}[dtype]
    return "tf32" if precision == "tf32" else "fp32"


def _phase_s(operators: Iterable[OperatorCost], gpu: GpuSpec, precision: str, calibration: Calibration, host_s: float) -> float:
    device, calls = 0.0, 0
    for operator in operators:
        if operator.name in _FREE:
            continue
        device += operator.count * operator_s(operator, gpu, precision, calibration)
        calls += operator.count
    return max(device, calls * host_s)


def estimate_step_time(
    trace: Trace, gpu: GpuSpec, spec: TrainSpec, *, measured_s: float | None = None, calibration: Calibration | None = None
) -> StepTime:
    """The time of one optimizer step of `spec` on `gpu`, from the operators of its trace.

    Args:
        measured_s: a measured optimizer step of this very configuration on this card; it replaces the estimate.
        calibration: efficiencies to use instead of the table's.
    """
    calibration = calibration or calibration_of(gpu, spec.precision)
    by_phase = {p: [o for o in trace.operators if o.phase == p] for p in Phase}

    def phase(which: Phase, host_s: float) -> float:
        return _phase_s(by_phase[which], gpu, spec.precision, calibration, host_s)

    micro_steps = spec.gradient_accumulation
    forward_s = phase(Phase.FORWARD, HOST_FORWARD_S) * micro_steps
    backward_s = phase(Phase.BACKWARD, HOST_BACKWARD_S) * micro_steps
    optimizer_s = phase(Phase.OPTIMIZER, HOST_BACKWARD_S) / _optimizer_shards(spec)
    communication_s, notes = exposed_communication_s(trace, gpu, spec)
    total = forward_s + backward_s + optimizer_s + communication_s
    if measured_s is not None:
        step = Estimate(
            value=measured_s, low=measured_s * (1 - MEASURED_SPREAD), high=measured_s * (1 + MEASURED_SPREAD), source="measured"
        )
    else:
        step = Estimate(value=total, low=total * calibration.low, high=total * calibration.high, source=calibration.source)
    if spec.precision.startswith("bf16") and not gpu.supports("bf16"):
        notes.append(f"{gpu.name} has no bf16 units: bf16 is emulated at the fp32 rate or slower; fp16 is faster")
    flops = float(model_flops(trace, spec)) * micro_steps
    peak = gpu.peak(_precision_rate(spec.precision))
    tokens = _tokens(spec)
    return StepTime(
        step=step,
        forward_s=forward_s,
        backward_s=backward_s,
        optimizer_s=optimizer_s,
        communication_s=communication_s,
        model_flops=flops,
        mfu=flops / step.value / peak if peak and flops else None,
        tokens_per_s=None if tokens is None else tokens / step.value,
        calibration=calibration,
        notes=tuple(notes),
    )


def _precision_rate(precision: str) -> str:
    return "fp16" if precision == "fp16_pure" else precision


def _tokens(spec: TrainSpec) -> float | None:
    if spec.task == "image_classification":
        return None
    return spec.micro_batch * spec.sequence_length * spec.gradient_accumulation * spec.world_size


def _optimizer_shards(spec: TrainSpec) -> int:
    return spec.world_size if spec.strategy in ("fsdp", "fsdp2", "zero1", "zero2", "zero3") else 1


def model_flops(trace: Trace, spec: TrainSpec) -> int:
    """FLOPs of one micro-step without what checkpointing computes again (about one forward, over the checkpointed layers)."""
    total = trace.flops_per_micro_step
    if spec.activation_checkpointing is None:
        return total
    forward = sum(o.flops * o.count for o in trace.operators if o.phase == Phase.FORWARD)
    backward = total - forward
    # Backward without recomputation is at most twice the forward; what lies above is the second forward.
    return total - min(forward, max(0, backward - forward)) if backward > forward else total


def link_bytes_per_s(gpu: GpuSpec, world_size: int) -> float:
    """Rate of a large collective over `world_size` ranks, per GPU and direction.

    Rings cross nodes once for each adapter, so a node's adapters work together.
    """
    inside = (
        gpu.nvlink_bytes_per_s / 2 if gpu.nvlink_bytes_per_s else (gpu.pcie_bytes_per_s or 16e9) / 2
    )  # PCIe is shared by pairs
    adapters = NODE_SIZE * ADAPTER_BYTES_PER_S["new" if (gpu.sm or 0) >= 90 else "old"]
    return LINK_EFFICIENCY * (inside if world_size <= NODE_SIZE else min(inside, adapters))


def exposed_communication_s(trace: Trace, gpu: GpuSpec, spec: TrainSpec) -> tuple[float, list[str]]:
    """Seconds of communication in an optimizer step that computing does not hide, and what was assumed."""
    n = spec.world_size
    if n <= 1:
        return 0.0, []
    rate = link_bytes_per_s(gpu, n)
    nodes = f", {NODE_SIZE} GPUs and as many network adapters a node" if n > NODE_SIZE else ""
    return EXPOSED * _wire_bytes(trace, spec) * (n - 1) / n / rate, [f"links assumed {rate / 1e9:.0f} GB/s a GPU{nodes}"]


def _wire_bytes(trace: Trace, spec: TrainSpec) -> float:
    """Bytes that collectives move for one GPU in an optimizer step, before the (n-1)/n of a ring."""
    item = 2 if spec.precision in ("bf16", "bf16_pure", "fp16", "fp16_pure") and spec.strategy != "ddp" else 4
    trained = sum(p.elements * min(p.item_bytes, item) for p in trace.parameters if p.trainable)
    weights = sum(p.elements * min(p.item_bytes, item) for p in trace.parameters)
    micro_steps = spec.gradient_accumulation
    if spec.strategy == "ddp":
        return 2 * trained  # all-reduce, in the last micro-step's backward
    if spec.strategy in ("zero1", "zero2"):  # reduce-scatter, then the updated weights are gathered
        return trained * (micro_steps if spec.strategy == "zero2" else 1) + trained
    return (2 * weights + trained) * micro_steps  # weights are gathered for forward and again for backward
