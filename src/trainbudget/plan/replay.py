"""Replay of a trace as it happened: one GPU, or DDP with its buckets."""

from __future__ import annotations

from trainbudget.plan.allocator import AllocatorOptions
from trainbudget.plan.ledger import Ledger
from trainbudget.plan.sharding.ddp import bucket_sizes, gradients_are_views
from trainbudget.plan.storage_replay import StorageReplay
from trainbudget.plan.tracing.trace import Category, Kind, Phase, Trace
from trainbudget.plan.train_spec import EvalSpec


class _CublasHandles:
    """Each thread that multiplies takes one workspace at its first product and keeps it: forward first, then backward."""

    def __init__(self, ledger: Ledger, size: int) -> None:
        self._ledger = ledger
        self._size = size
        self._taken: set[Phase] = set()

    def enter(self, phase: Phase) -> None:
        """A phase begins."""
        if phase in (Phase.FORWARD, Phase.BACKWARD) and phase not in self._taken:
            self._taken.add(phase)
            self._ledger.malloc(self._size, Category.WORKSPACE)


class _Buckets:
    """DDP's flat buckets, made in its constructor."""

    def __init__(self, ledger: Ledger, trace: Trace) -> None:
        self._ledger = ledger
        self._sizes = bucket_sizes(trace.parameters, trace.spec)
        self._views = gradients_are_views(trace.spec)
        self._last_micro_step = trace.micro_steps - 1
        self._made = False
        self._syncs = False

    def start(self, micro_step: int) -> None:
        """A micro-step begins; only the last of a step communicates."""
        self._syncs = micro_step == self._last_micro_step
        if not self._made:
            self._made = True
            for size in self._sizes:
                self._ledger.malloc(size, Category.COMMUNICATION)

    def takes(self, storage: int) -> bool:
        """Whether autograd's gradient dies now because its bucket holds it."""
        return self._views and self._syncs and storage >= 0


def replay(trace: Trace, *, cublas_bytes: int, options: AllocatorOptions | None = None, exact: bool = False) -> Ledger:
    """The ledger after every event of an unsharded trace, evaluation included.

    Raises:
        OutOfMemory: ``options`` give a capacity and the step does not fit.
    """
    ledger = Ledger(options, exact=exact)
    storages = StorageReplay(ledger)
    handles = _CublasHandles(ledger, cublas_bytes)
    ddp = _Buckets(ledger, trace) if trace.spec.strategy == "ddp" else None
    for event in trace.events:
        if storages.apply(event):
            continue
        kind, a, b, _ = event
        if kind == Kind.PHASE:
            ledger.enter(Phase(a))
            handles.enter(Phase(a))
            if a == Phase.EVALUATION:
                _keep_predictions(ledger, trace)
        elif ddp is not None and kind == Kind.STEP:
            ddp.start(b)
        elif ddp is not None and kind == Kind.GRADIENT and ddp.takes(a):
            storages.free(a)
    if ledger.phase is Phase.EVALUATION:
        _concatenate(ledger, trace)
    return ledger


def kept_batches(evaluation: EvalSpec) -> int:
    """Batches of predictions that an evaluation loop holds on the device before it moves them to the host."""
    if not evaluation.keep_logits:
        return 0
    return min(evaluation.batches, evaluation.accumulation_steps or evaluation.batches)


def _keep_predictions(ledger: Ledger, trace: Trace) -> None:
    """The predictions of all batches but the last; one tensor, as the loop concatenates them."""
    evaluation = trace.spec.evaluation
    if evaluation is not None:
        ledger.malloc((kept_batches(evaluation) - 1) * trace.logits_bytes, Category.LOGITS)


def _concatenate(ledger: Ledger, trace: Trace) -> None:
    """The last batch joins: old, new and the concatenation are alive at once."""
    evaluation = trace.spec.evaluation
    if evaluation is not None and evaluation.keep_logits:
        ledger.scratch([trace.logits_bytes, kept_batches(evaluation) * trace.logits_bytes], Category.LOGITS)
