"""Replays of DDP, FSDP1 and FSDP2 against bytes counted on real CPU ranks: equal to a few small tensors (counters, the loss,
statistics that the CPU keeps in another dtype)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from integration.plan.replayed_net import RANK, TOLERANCE_BYTES, different, replayed  # noqa: E402
from trainbudget.plan.simulated_device import backend  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not backend.available(), reason="this torch cannot register a device from Python"),
    pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no distributed package"),
]

MIXED = {"param_dtype": "bf16", "reduce_dtype": "fp32"}


def case(strategy: str, micro_steps: int, world: int, **options: Any) -> dict[str, Any]:
    return {"strategy": strategy, "micro_steps": micro_steps, "world": world, **options}


DDP = [
    case("ddp", 1, 2),
    case("ddp", 1, 2, gradient_as_bucket_view=True),
    case("ddp", 3, 2),
]
FSDP = [
    case("fsdp", 1, 4),
    case("fsdp", 3, 4),
    case("fsdp", 1, 4, limit_all_gathers=False),
    case("fsdp", 1, 4, shard_grad_op=True),
    case("fsdp", 1, 8, replicas=2),
    case("fsdp", 1, 4, **MIXED),
    case("fsdp", 3, 4, **MIXED),
    case("fsdp", 1, 8, replicas=2, **MIXED),
    case("fsdp2", 1, 4),
    case("fsdp2", 3, 4),
    case("fsdp2", 1, 8),
    case("fsdp2", 1, 4, reshard_after_forward=False),
    case("fsdp2", 1, 8, replicas=2),
    case("fsdp2", 1, 4, param_dtype="bf16"),
    case("fsdp2", 1, 4, **MIXED),
    case("fsdp2", 3, 4, **MIXED),
    case("fsdp2", 1, 4, reshard_after_forward=False, **MIXED),
    case("fsdp2", 1, 8, replicas=2, param_dtype="bf16"),
]


def started(rank: int, folder: Path, cases: list[dict[str, Any]]) -> subprocess.Popen[str]:
    command = [sys.executable, str(RANK), str(rank), str(folder), json.dumps(cases)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, int]]:
    """What rank 0 counted, by case: all of FSDP in one process (the fake process group needs no partner), DDP in two."""
    folder = tmp_path_factory.mktemp("ranks")
    running = [started(0, folder, FSDP), started(0, folder, DDP), started(1, folder, DDP)]
    outputs = [process.communicate(timeout=600) for process in running]
    for process, (_, error) in zip(running, outputs, strict=True):
        assert process.returncode == 0, error[-2000:]
    found: dict[str, dict[str, int]] = {}
    for cases, (output, _) in zip((FSDP, DDP), outputs, strict=False):
        lines = [line for line in output.splitlines() if line.startswith('{"forward')]
        found.update((json.dumps(c), json.loads(line)) for c, line in zip(cases, lines, strict=True))
    return found


def strategy_options(wanted: dict[str, Any]) -> dict[str, Any]:
    """The replay's options for what the ranks were told."""
    told = {k: v for k, v in wanted.items() if k not in ("strategy", "micro_steps", "world", "limit_all_gathers")}
    if wanted["strategy"] == "ddp":
        return told
    stored = {"shard_dtype": "fp32", "param_dtype": "fp32"}
    prefetch = {"backward_prefetch": "pre", "use_orig_params": True} if wanted["strategy"] == "fsdp" else {}
    return {**stored, **prefetch, **told}


@pytest.mark.parametrize("wanted", [*DDP, *FSDP], ids=lambda w: "-".join(f"{k}={v}" for k, v in w.items()))
def test_the_replay_equals_the_counted_bytes(counted: dict[str, dict[str, int]], wanted: dict[str, Any]) -> None:
    compute = wanted.get("param_dtype", "fp32")
    found = replayed(wanted["strategy"], compute, wanted["micro_steps"], wanted["world"], strategy_options(wanted))
    assert different(found, counted[json.dumps(wanted)], TOLERANCE_BYTES[compute]) == {}
