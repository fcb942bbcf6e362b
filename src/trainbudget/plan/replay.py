"""Replay of a trace as it happened: one GPU, or DDP with its buckets."""

from __future__ import annotations

from trainbudget.plan.allocator import AllocatorOptions
from trainbudget.plan.ledger import Ledger
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


def replay(trace: Trace, *, cublas_bytes: int, options: AllocatorOptions | None = None, exact: bool = False) -> Ledger:
    """The ledger after every event of an unsharded trace, evaluation included.

    Raises:
        OutOfMemory: ``options`` give a capacity and the step does not fit.
    """
    ledger = Ledger(options, exact=exact)
    handles = _CublasHandles(ledger, cublas_bytes)
    blocks: dict[int, int] = {}
    scratch: list[int] = []
    kept: int | None = None
    for kind, a, b, c in trace.events:
        if kind == Kind.MALLOC:
            handle = ledger.malloc(b, Category(c))
            if handle is not None:
                blocks[a] = handle
        elif kind == Kind.FREE:
            ledger.free(blocks.pop(a, None))
        elif kind == Kind.RETAG:
            if a in blocks:
                ledger.retag(blocks[a], Category(c))
        elif kind == Kind.WORKSPACE:
            scratch.append(b)
            if len(scratch) == c:
                ledger.scratch(scratch)
                scratch = []
        elif kind == Kind.PHASE:
            ledger.enter(Phase(a))
            handles.enter(Phase(a))
            if a == Phase.EVALUATION:
                kept = _keep_predictions(ledger, trace)
    if kept is not None:
        _concatenate(ledger, trace)
    return ledger


def kept_batches(evaluation: EvalSpec) -> int:
    """Batches of predictions that an evaluation loop holds on the device before it moves them to the host."""
    if not evaluation.keep_logits:
        return 0
    return min(evaluation.batches, evaluation.accumulation_steps or evaluation.batches)


def _keep_predictions(ledger: Ledger, trace: Trace) -> int | None:
    """The predictions of all batches but the last; one tensor, as the loop concatenates them."""
    evaluation = trace.spec.evaluation
    if evaluation is None or not trace.logits_bytes:
        return None
    return ledger.malloc((kept_batches(evaluation) - 1) * trace.logits_bytes, Category.LOGITS)


def _concatenate(ledger: Ledger, trace: Trace) -> None:
    """The last batch joins: old, new and the concatenation are alive at once."""
    evaluation = trace.spec.evaluation
    if evaluation is not None:
        ledger.scratch([trace.logits_bytes, kept_batches(evaluation) * trace.logits_bytes], Category.LOGITS)
