"""The network of ``rank_memory.py``, traced and replayed under a sharding strategy."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import torch

from trainbudget.plan.memory import TargetGpu, TrainSpec, trace_step
from trainbudget.plan.replay import replay
from trainbudget.plan.sharding.replay import replay_sharded
from trainbudget.plan.tracing.trace import Phase, Trace

RANK = Path(__file__).with_name("rank_memory.py")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@functools.cache
def rank_memory() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rank_memory", RANK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def traced(strategy: str, dtype: str, micro_steps: int) -> Trace:
    net = rank_memory()
    spec = TrainSpec(strategy=strategy, world_size=2, gradient_accumulation=micro_steps, loop="plain", max_grad_norm=None)  # type: ignore[arg-type]
    return trace_step(
        model=lambda: net.Net().to(DTYPES[dtype]),
        batches=[torch.zeros(net.BATCH, net.LENGTH, dtype=torch.long)],
        training_step=net.loss_of,
        optimizer_factory=lambda p: torch.optim.AdamW(p, foreach=True),
        target=TargetGpu(),
        spec=spec,
        steps=3,
    )


def replayed(strategy: str, compute: str, micro_steps: int, world: int, options: dict[str, Any]) -> dict[str, int]:
    """Highest bytes of forward and backward, and of the optimizer step; ``compute`` is the dtype of the traced model."""
    unsharded = strategy == "ddp"  # its accumulation is traced, that of the others replayed
    trace = traced(strategy, compute, micro_steps if unsharded else 1)
    spec = msgspec.structs.replace(trace.spec, world_size=world, gradient_accumulation=micro_steps, strategy_options=options)
    ledger = (replay if unsharded else replay_sharded)(msgspec.structs.replace(trace, spec=spec), cublas_bytes=0, exact=True)
    return {
        "forward_backward_bytes": max(ledger.phase_peaks[Phase.FORWARD], ledger.phase_peaks[Phase.BACKWARD]),
        "optimizer_bytes": ledger.phase_peaks[Phase.OPTIMIZER],
    }


def different(found: dict[str, int], counted: dict[str, int], tolerance_bytes: int) -> dict[str, int]:
    """Phases whose highest bytes differ by more than the tolerance: replayed minus counted."""
    return {k: found[k] - counted[k] for k in found if abs(found[k] - counted[k]) > tolerance_bytes}


TOLERANCE_BYTES = {
    "fp32": 4096,  # a few scalars and the batch of token ids
    "bf16": 8192,  # and means and deviations of the layer norms: fp32 on a GPU, bf16 on the CPU, 256 rows x 2 x 2 B x 4
}
