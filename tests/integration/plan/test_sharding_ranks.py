"""Replays of DDP, FSDP1 and FSDP2 against bytes counted on real CPU ranks: equal to a few small tensors (counters, the loss)."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from trainbudget.plan.memory import TargetGpu, TrainSpec, trace_step  # noqa: E402
from trainbudget.plan.replay import replay  # noqa: E402
from trainbudget.plan.sharding.replay import replay_sharded  # noqa: E402
from trainbudget.plan.simulated_device import backend  # noqa: E402
from trainbudget.plan.tracing.trace import Phase  # noqa: E402

RANK = Path(__file__).with_name("rank_memory.py")
TOLERANCE_BYTES = 4096  # a few scalars that the CPU run has and the trace has not

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not backend.available(), reason="this torch cannot register a device from Python"),
    pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no distributed package"),
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def counted_bytes(strategy: str, micro_steps: int, world: int) -> int:
    """Highest bytes of forward and backward in the third step of real ranks."""
    port = free_port()
    ranks = range(world if strategy.startswith("ddp") else 1)  # the fake process group needs no partner
    running = [
        subprocess.Popen(
            [sys.executable, str(RANK), strategy, str(micro_steps), str(rank), str(world), str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ranks
    ]
    outputs = [process.communicate(timeout=240) for process in running]
    assert all(process.returncode == 0 for process in running), outputs[0][1][-2000:]
    line = next(line for line in outputs[0][0].splitlines() if line.startswith("{"))
    return int(json.loads(line)["peak_bytes"])


def replayed_bytes(strategy: str, micro_steps: int, world: int, options: dict[str, Any]) -> int:
    sys.path.insert(0, str(RANK.parent))
    try:
        import rank_memory
    finally:
        sys.path.pop(0)
    spec = TrainSpec(
        strategy=strategy,  # type: ignore[arg-type]
        world_size=world,
        strategy_options=options,
        gradient_accumulation=micro_steps,
        loop="plain",
        max_grad_norm=None,
        precision="fp32",
    )
    trace = trace_step(
        model=rank_memory.Net,
        batches=[torch.zeros(rank_memory.BATCH, rank_memory.LENGTH, dtype=torch.long)],
        training_step=rank_memory.loss_of,
        optimizer_factory=lambda p: torch.optim.AdamW(p, foreach=True),
        target=TargetGpu(),
        spec=spec,
        steps=3,
    )
    ledger = (replay if strategy == "ddp" else replay_sharded)(trace, cublas_bytes=0, exact=True)
    return max(ledger.phase_peaks[Phase.FORWARD], ledger.phase_peaks[Phase.BACKWARD])


FP32 = {"shard_dtype": "fp32", "param_dtype": "fp32"}
FSDP1 = {**FP32, "backward_prefetch": "pre", "use_orig_params": True}


@pytest.mark.parametrize(
    ("counted", "strategy", "micro_steps", "world", "options"),
    [
        ("ddp", "ddp", 1, 2, {}),
        ("ddp_view", "ddp", 1, 2, {"gradient_as_bucket_view": True}),
        ("ddp", "ddp", 3, 2, {}),
        ("fsdp", "fsdp", 1, 4, FSDP1),
        ("fsdp", "fsdp", 3, 4, FSDP1),
        ("fsdp2", "fsdp2", 1, 4, FP32),
        ("fsdp2", "fsdp2", 3, 4, FP32),
        ("fsdp2", "fsdp2", 1, 8, FP32),
    ],
)
def test_the_replay_equals_the_counted_bytes(
    counted: str, strategy: str, micro_steps: int, world: int, options: dict[str, Any]
) -> None:
    expected = counted_bytes(counted, micro_steps, world)
    assert replayed_bytes(strategy, micro_steps, world, options) == pytest.approx(expected, abs=TOLERANCE_BYTES)
