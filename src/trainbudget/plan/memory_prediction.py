"""From a trace to a prediction: allocated, reserved and device bytes with intervals, what they are made of and when they peak."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainbudget.plan.allocator import MIB, AllocatorOptions, OutOfMemory
from trainbudget.plan.ledger import Ledger
from trainbudget.plan.replay import replay
from trainbudget.plan.tracing.trace import Category, Phase, Trace
from trainbudget.plan.train_spec import TargetGpu
from trainbudget.plan.uncertainty import Interval, UncertainPart, interval
from trainbudget.plan.workspaces import context_bytes as context_estimate
from trainbudget.plan.workspaces import cublas_workspace_bytes

#: Said of every plan for compiled code.
COMPILED = (
    "torch.compile: planned as eager code, normally the higher of the two; mode reduce-overhead (CUDA graphs) keeps a pool "
    "of its own, which is not counted"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPrediction:
    """Peak memory of a training step on one GPU.

    Attributes:
        allocated: torch's ``max_memory_allocated``.
        reserved: torch's ``max_memory_reserved``.
        device: what the driver shows for the process: reserved, the CUDA context and communication buffers.
        categories: bytes at the allocated peak by category label.
        peak_phase: where the peak is: forward, backward, optimizer, evaluation, save.
        peak_by_phase: highest allocated bytes of each phase.
        fits: whether the device peak fits the target: None inside the interval.
        reasons: one line for each uncertain part of the intervals.
        not_understood: one line for each thing the prediction only approximates.
        source: ``trace`` or ``analytic``.
    """

    allocated: Interval
    reserved: Interval
    device: Interval
    categories: dict[str, int]
    peak_phase: str
    peak_by_phase: dict[str, int]
    fits: bool | None
    reasons: tuple[str, ...] = ()
    not_understood: tuple[str, ...] = ()
    source: str = "trace"


def predict_memory(
    trace: Trace,
    target: TargetGpu,
    *,
    allocator_options: AllocatorOptions | None = None,
    context_bytes: int | None = None,
) -> MemoryPrediction:
    """The peak of the traced step on ``target``.

    Args:
        context_bytes: measured bytes of the CUDA context; None = estimated, with its interval.
    """
    options = allocator_options or AllocatorOptions()
    ledger = _ledger_of(trace, target, options)
    return _prediction(trace, target, ledger, context_bytes, options)


def simulate_limit(trace: Trace, target: TargetGpu, options: AllocatorOptions, context: int) -> bool:
    """Whether the step runs to its end within the target's memory, unused segments given back as torch does."""
    try:
        _ledger_of(trace, target, replace(options, capacity_bytes=max(0, target.usable_bytes - context)))
    except OutOfMemory:
        return False
    return True


def _ledger_of(trace: Trace, target: TargetGpu, options: AllocatorOptions) -> Ledger:
    cublas = cublas_workspace_bytes(target.capability)
    if trace.spec.strategy in ("none", "ddp"):
        return replay(trace, cublas_bytes=cublas, options=options)
    from trainbudget.plan.sharding.replay import replay_sharded

    return replay_sharded(trace, cublas_bytes=cublas, options=options)


def _prediction(
    trace: Trace, target: TargetGpu, ledger: Ledger, measured_context: int | None, options: AllocatorOptions
) -> MemoryPrediction:
    parts = uncertain_parts(trace, target, ledger)
    allocated = interval(ledger.peak.allocated_bytes, parts)
    reserved_parts = [*parts, _fragmentation(ledger, options)]
    reserved = interval(ledger.peak_reserved_bytes, reserved_parts, floor=allocated.low)
    context = context_estimate(target.capability) if measured_context is None else (measured_context,) * 3
    context_part = UncertainPart(
        reason="CUDA context: estimated, the live measurement replaces it",
        less_bytes=context[0] - context[1],
        more_bytes=context[2] - context[0],
    )
    device_parts = [*reserved_parts, context_part, *_communication(trace)]
    device = interval(ledger.peak_reserved_bytes + context[0] + _communication_bytes(trace), device_parts)
    return MemoryPrediction(
        allocated=allocated,
        reserved=reserved,
        device=device,
        categories={c.label: n for c, n in sorted(ledger.peak.categories.items(), key=lambda item: -item[1])},
        peak_phase=ledger.peak.phase.label,
        peak_by_phase={p.label: n for p, n in ledger.phase_peaks.items() if p is not Phase.SETUP},
        fits=_fits(trace, target, options, device=device, allocated=allocated, context=context[0]),
        reasons=(*(p.reason for p in device_parts if p.less_bytes or p.more_bytes), *trace.remarks),
        not_understood=(*trace.not_understood, *([COMPILED] if trace.spec.compiled else [])),
    )


def _fits(
    trace: Trace, target: TargetGpu, options: AllocatorOptions, *, device: Interval, allocated: Interval, context: int
) -> bool | None:
    """True when even the high end fits, False when it cannot run even with every unused segment given back, None in between."""
    limit = target.usable_bytes
    if device.high <= limit:
        return True
    if allocated.low + context > limit:
        return False
    if device.value <= limit:
        return None
    return None if simulate_limit(trace, target, options, context) else (False if device.low > limit else None)


def uncertain_parts(trace: Trace, target: TargetGpu, ledger: Ledger) -> list[UncertainPart]:
    """What may make the allocated peak differ from the traced one."""
    peak = ledger.peak.categories
    moving = sum(peak.get(c, 0) for c in (Category.ACTIVATIONS, Category.LOGITS, Category.TEMPORARIES, Category.WORKSPACE))
    cublas = cublas_workspace_bytes(target.capability)
    parts = [
        UncertainPart(
            reason="cuBLAS and cuBLASLt workspaces: one handle less or two more than assumed",
            less_bytes=cublas,
            more_bytes=2 * cublas,
        ),
        UncertainPart(
            reason="activations and temporaries: 3 % for kernels and library versions that keep a tensor more or less",
            less_bytes=0.03 * moving,
            more_bytes=0.03 * moving,
        ),
    ]
    convolution = max((o.bytes for o in trace.operators if o.kind == "convolution"), default=0)
    if convolution:
        parts.append(
            UncertainPart(
                reason="cuDNN workspace: up to the operands of the largest convolution", less_bytes=0, more_bytes=convolution
            )
        )
    if not trace.portable:
        parts.append(
            UncertainPart(
                reason="torch before 2.10: traced on fake CPU tensors, which differed from CUDA by up to 14 %",
                less_bytes=0.05 * ledger.peak.allocated_bytes,
                more_bytes=0.05 * ledger.peak.allocated_bytes + 0.1 * moving,
            )
        )
    if trace.spec.compiled:
        # AOTAutograd's min-cut partitioner (torch/_functorch/partitioners.py) keeps what is cheapest to keep and computes the
        # rest again, never products, attention or convolutions; inductor fuses the rest, so no copy between them exists.
        parts.append(
            UncertainPart(
                reason="torch.compile: traced as eager code; compiled code may keep only results of products and attention",
                less_bytes=min(trace.recomputable_bytes, moving),
                more_bytes=0,
            )
        )
    if trace.answers:
        parts.append(
            UncertainPart(
                reason=f"{trace.answers} values that depend on data were assumed",
                less_bytes=0.01 * moving,
                more_bytes=0.01 * moving,
            )
        )
    if trace.spec.quantization != "none":
        parts.append(
            UncertainPart(
                reason="quantized layers: stand-ins for bitsandbytes, 4 % of activations less, 8 % more",
                less_bytes=0.04 * moving,
                more_bytes=0.08 * moving,
            )
        )
    if trace.spec.strategy != "none":
        sharded = ledger.peak.allocated_bytes
        parts.append(
            UncertainPart(
                reason=f"{trace.spec.strategy}: order of communication and compute streams, 3 %",
                less_bytes=0.03 * sharded,
                more_bytes=0.03 * sharded,
            )
        )
    if trace.not_understood:
        parts.append(UncertainPart(reason="parts that were not understood", less_bytes=0.1 * moving, more_bytes=0.1 * moving))
    return parts


def _fragmentation(ledger: Ledger, options: AllocatorOptions) -> UncertainPart:
    """Segments depend on the order of lengths and on what loading left behind; expandable segments hardly fragment."""
    share = 0.01 if options.expandable_segments else 0.03
    slack = ledger.peak_reserved_bytes - ledger.peak.allocated_bytes
    return UncertainPart(
        reason="fragmentation: batches of other lengths and the order of loading move segment borders",
        less_bytes=min(slack, share * ledger.peak_reserved_bytes),
        more_bytes=share * ledger.peak_reserved_bytes,
    )


def _communication_bytes(trace: Trace) -> int:
    """NCCL's receive buffers of one ring communicator, 16 channels (source: NCCL 2.30 init.cc, p2p.cc: 9.19 MiB a channel and
    peer)."""
    return 0 if trace.spec.world_size <= 1 else int(16 * 9.19 * MIB)


def _communication(trace: Trace) -> list[UncertainPart]:
    if trace.spec.world_size <= 1:
        return []
    value = _communication_bytes(trace)
    return [
        UncertainPart(
            reason="NCCL buffers: channels and communicators depend on the topology", less_bytes=0.8 * value, more_bytes=6 * value
        )
    ]
