"""Real CPU ranks of sharded training, every allocation counted: prints a line of JSON for each configuration.

    python rank_memory.py RANK FOLDER '[{"strategy": "fsdp2", "world": 4, "micro_steps": 1, "param_dtype": "bf16"}, ...]'

FSDP uses torch's fake process group (a partner and a backend's noise are not needed); DDP uses gloo between real processes that
meet through files in FOLDER.
"""

from __future__ import annotations

import contextlib
import gc
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

VOCABULARY, WIDTH, BLOCKS, BATCH, LENGTH = 500, 256, 4, 4, 64
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
STEPS = 3  # the optimizer makes its state in the first


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def loss_of(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())


def fsdp2(net: nn.Module, wanted: dict[str, Any]) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    replicas = wanted.get("replicas", 1)
    world = wanted["world"]
    shape, names = ((replicas, world // replicas), ("copy", "shard")) if replicas > 1 else ((world,), ("shard",))
    options = {
        "mesh": init_device_mesh("cpu", shape, mesh_dim_names=names),
        "reshard_after_forward": wanted.get("reshard_after_forward", True),
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=DTYPES.get(wanted.get("param_dtype", "")), reduce_dtype=DTYPES.get(wanted.get("reduce_dtype", ""))
        ),
    }
    for block in net.blocks:
        fully_shard(block, **options)
    return fully_shard(net, **options)


def fsdp1(net: nn.Module, wanted: dict[str, Any]) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel, MixedPrecision, ShardingStrategy
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    replicas = wanted.get("replicas", 1)
    sharding, mesh = ShardingStrategy.FULL_SHARD, None
    if wanted.get("shard_grad_op"):
        sharding = ShardingStrategy.SHARD_GRAD_OP
    if replicas > 1:
        sharding = ShardingStrategy.HYBRID_SHARD
        mesh = init_device_mesh("cpu", (replicas, wanted["world"] // replicas), mesh_dim_names=("copy", "shard"))
    low = DTYPES.get(wanted.get("param_dtype", ""))
    return FullyShardedDataParallel(
        net,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        backward_prefetch=BackwardPrefetch.BACKWARD_PRE,
        device_id=torch.device("cpu"),
        device_mesh=mesh,
        limit_all_gathers=wanted.get("limit_all_gathers", True),
        mixed_precision=MixedPrecision(param_dtype=low, reduce_dtype=DTYPES.get(wanted.get("reduce_dtype", ""))) if low else None,
        sharding_strategy=sharding,
        use_orig_params=True,
    )


def ddp(net: nn.Module, wanted: dict[str, Any]) -> nn.Module:
    # Without the first broadcast: gloo's own thread may free its flat copy of the model, where the profiler sees no frees.
    views = wanted.get("gradient_as_bucket_view", False)
    return nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=views, init_sync=False)


WRAPPED = {"fsdp2": fsdp2, "fsdp": fsdp1, "ddp": ddp}


def without_sync(strategy: str, model: nn.Module, last: bool) -> contextlib.AbstractContextManager[Any]:
    """Only the last micro-step communicates, as accelerate and Lightning do it."""
    if strategy == "fsdp2":
        model.set_requires_gradient_sync(last)
        return contextlib.nullcontext()
    return contextlib.nullcontext() if last else model.no_sync()


def count(wanted: dict[str, Any], rank: int, meeting: Path) -> dict[str, int]:
    """Train a few steps as one rank."""
    from counted_allocations import mark, peaks, recorded

    strategy, micro_steps, world = wanted["strategy"], wanted["micro_steps"], wanted["world"]
    if strategy == "ddp":
        torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    else:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    gc.collect()
    with recorded() as profiler:
        model = WRAPPED[strategy](Net(), wanted)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        for _ in range(STEPS):
            mark("step")
            for micro in range(micro_steps):
                mark("forward")
                ids = torch.zeros(BATCH, LENGTH, dtype=torch.long)
                with without_sync(strategy, model, micro == micro_steps - 1):
                    loss = loss_of(model, ids)
                    mark("backward")
                    loss.backward()
            mark("optimizer")
            optimizer.step()
            optimizer.zero_grad()
        mark("end")
    torch.distributed.destroy_process_group()
    return peaks(profiler)


def main(rank: int, folder: Path, wanted: list[dict[str, Any]]) -> None:
    torch.set_num_threads(1)
    for number, configuration in enumerate(wanted):
        print(json.dumps(count(configuration, rank, folder / str(number))), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))
