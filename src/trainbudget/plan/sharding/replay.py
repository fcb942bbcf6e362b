"""Replay a traced step under the strategy its configuration names; accumulation takes the worst of its micro-steps."""

from __future__ import annotations

from typing import Any

from trainbudget.errors import ConfigError
from trainbudget.plan.allocator import AllocatorOptions
from trainbudget.plan.ledger import Ledger
from trainbudget.plan.sharding.fsdp1 import Fsdp1
from trainbudget.plan.sharding.fsdp2 import Fsdp2
from trainbudget.plan.sharding.strategy import FIRST, LAST, MIDDLE, ONLY, OptimizerMemory, Strategy
from trainbudget.plan.sharding.timeline import Timeline, timeline_of
from trainbudget.plan.sharding.zero3 import Zero3
from trainbudget.plan.sharding.zero12 import Zero12
from trainbudget.plan.storage_replay import StorageReplay
from trainbudget.plan.tracing.trace import Category, Event, Kind, Phase, Trace
from trainbudget.plan.train_spec import TrainSpec

STEPS = 2  # the second has the optimizer's state
TRACE_OPTIONS = ("use_orig_params", "sync_each_micro_step")


def strategy_of(spec: TrainSpec) -> Strategy:
    """The state machine for ``spec``.

    Raises:
        ConfigError: an option the strategy does not have.
    """
    options: dict[str, Any] = {k: v for k, v in spec.strategy_options.items() if k not in TRACE_OPTIONS}
    if spec.strategy in ("fsdp", "fsdp2"):
        options = {**_dtypes(spec), **options}
    try:
        if spec.strategy == "fsdp":
            if spec.loop == "plain":
                options.setdefault("backward_prefetch", "pre")  # torch's default; accelerate's is none
            return Fsdp1(spec.world_size, **options)
        if spec.strategy == "fsdp2":
            return Fsdp2(spec.world_size, **options)
        if spec.strategy in ("zero1", "zero2"):
            return Zero12(spec.world_size, int(spec.strategy[-1]), **options)
        if spec.strategy == "zero3":
            return Zero3(spec.world_size, **options)
    except TypeError as exc:
        raise ConfigError(f"strategy {spec.strategy}: {exc}") from exc
    raise ConfigError(f"strategy {spec.strategy!r} is not sharded")


def _dtypes(spec: TrainSpec) -> dict[str, str]:
    """Stored and compute dtype as accelerate and Lightning set them from the precision."""
    if spec.precision in ("fp32", "tf32"):
        return {"shard_dtype": "fp32", "param_dtype": "fp32"}
    low = spec.precision[:4]
    stored = low if spec.precision.endswith("_pure") else "fp32"
    return {"shard_dtype": stored, "param_dtype": low}


def replay_sharded(trace: Trace, *, cublas_bytes: int, options: AllocatorOptions | None = None, exact: bool = False) -> Ledger:
    """The ledger of the worst micro-step.

    Raises:
        ConfigError: the strategy's options are wrong.
        OutOfMemory: ``options`` give a capacity and the step does not fit.
    """
    timeline = timeline_of(trace)
    places = [ONLY]
    syncs_each = trace.spec.strategy_options.get("sync_each_micro_step", False) and trace.spec.strategy in ("fsdp", "fsdp2")
    if trace.spec.gradient_accumulation > 1 and not syncs_each:  # DeepSpeed accumulates whatever it reduces
        places = [FIRST, MIDDLE, LAST] if trace.spec.gradient_accumulation > 2 else [FIRST, LAST]
    ledgers = [_replay(trace, timeline, place, cublas_bytes, Ledger(options, exact=exact)) for place in places]
    worst = max(ledgers, key=lambda ledger: ledger.peak.allocated_bytes)
    for phase in Phase:
        highest = max((ledger.phase_peaks.get(phase, 0) for ledger in ledgers), default=0)
        if highest:
            worst.phase_peaks[phase] = highest
    worst.peak_reserved_bytes = max(ledger.peak_reserved_bytes for ledger in ledgers)
    return worst


def _replay(trace: Trace, timeline: Timeline, place: str, cublas_bytes: int, ledger: Ledger) -> Ledger:
    strategy = strategy_of(trace.spec)
    strategy.micro = place
    storages = StorageReplay(ledger)
    for size in timeline.buffer_bytes:
        ledger.malloc(size, Category.BUFFERS)
    for _ in range(2 if cublas_bytes else 0):  # one handle in the forward thread, one in the backward thread
        ledger.malloc(cublas_bytes, Category.WORKSPACE)
    optimizer = OptimizerMemory(tensors=trace.state_tensors, item_bytes=trace.state_item_bytes, scratch=trace.optimizer_scratch)
    strategy.bind(ledger, timeline, optimizer, storages.free)
    for _ in range(STEPS):
        ledger.enter(Phase.FORWARD)
        strategy.zero_grad()
        storages.free_all()
        strategy.start_step()
        for storage, (size, category) in timeline.carried.items():
            storages.born(storage, size, category)
        for event in timeline.events:
            if not storages.apply(event):
                _mark(event, strategy, ledger, storages)
    _save(ledger, strategy)
    return ledger


def _mark(event: Event, strategy: Strategy, ledger: Ledger, storages: StorageReplay) -> None:
    kind, a, b, _ = event
    if kind == Kind.GRADIENT:
        storages.retag(a, Category.GRADIENTS)
        strategy.gradient(b, a)
    elif kind == Kind.PHASE and a in (Phase.FORWARD, Phase.BACKWARD):
        ledger.enter(Phase(a))
        strategy.in_backward = a == Phase.BACKWARD
    elif kind == Kind.BACKWARD_END:
        strategy.end_backward()
        if strategy.micro not in (FIRST, MIDDLE):
            ledger.enter(Phase.OPTIMIZER)
            strategy.optimizer_step()
    elif kind == Kind.UNIT_PRE_FORWARD:
        strategy.pre_forward(a)
    elif kind == Kind.UNIT_POST_FORWARD:
        strategy.post_forward(a)
    elif kind == Kind.UNIT_PRE_BACKWARD:
        strategy.pre_backward(a)
    elif kind == Kind.UNIT_POST_BACKWARD:
        strategy.post_backward(a)


def _save(ledger: Ledger, strategy: Strategy) -> None:
    """A checkpoint with a full state dict: what is gathered on the device at once."""
    save_bytes = getattr(strategy, "save_bytes", lambda: 0)()
    if save_bytes:
        ledger.enter(Phase.SAVE)
        ledger.scratch([save_bytes], Category.COMMUNICATION)
