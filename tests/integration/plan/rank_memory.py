"""One real CPU rank of sharded training, every allocation counted; prints the highest bytes of forward and backward.


    python rank_memory.py STRATEGY MICRO_STEPS RANK WORLD PORT

``fsdp`` and ``fsdp2`` use torch's fake process group (no noise from a backend); ``ddp`` variants use gloo between real processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any

import torch
from torch import nn

VOCABULARY, WIDTH, BLOCKS, BATCH, LENGTH = 500, 256, 4, 4, 64


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


def wrapped(strategy: str, net: nn.Module) -> nn.Module:
    if strategy == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        for block in net.blocks:
            fully_shard(block)
        return fully_shard(net)
    if strategy == "fsdp":
        from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        return FullyShardedDataParallel(
            net,
            auto_wrap_policy=ModuleWrapPolicy({Block}),
            backward_prefetch=BackwardPrefetch.BACKWARD_PRE,
            device_id=torch.device("cpu"),
            use_orig_params=True,
        )
    # Without the first broadcast: gloo's own thread may free its flat copy of the model, where the profiler sees no frees.
    return nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=strategy == "ddp_view", init_sync=False)


def allocations(profiler: Any) -> list[tuple[int, int]]:
    """(time, bytes) of every CPU allocation (freed ones are negative)."""
    found, waiting = [], list(profiler.profiler.kineto_results.experimental_event_tree())
    while waiting:
        event = waiting.pop()
        waiting.extend(event.children)
        if event.tag == torch._C._profiler._EventType.Allocation:
            found.append((event.start_time_ns, event.extra_fields.alloc_size))
    return sorted(found)


def marks(profiler: Any, name: str) -> list[int]:
    found, waiting = [], list(profiler.profiler.kineto_results.experimental_event_tree())
    while waiting:
        event = waiting.pop()
        waiting.extend(event.children)
        if event.name == name:
            found.append(event.start_time_ns)
    return sorted(found)


def without_sync(strategy: str, model: nn.Module, last: bool) -> contextlib.AbstractContextManager[Any]:
    """Only the last micro-step communicates, as accelerate and Lightning do it."""
    if strategy == "fsdp2":
        model.set_requires_gradient_sync(last)
        return contextlib.nullcontext()
    return contextlib.nullcontext() if last else model.no_sync()


def main(strategy: str, micro_steps: int, rank: int, world: int, port: int) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    if strategy.startswith("ddp"):
        torch.distributed.init_process_group("gloo", rank=rank, world_size=world)
    else:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        model = wrapped(strategy, Net())
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        for _ in range(3):
            with torch.profiler.record_function("step_begins"):
                torch.zeros(1)
            for micro in range(micro_steps):
                ids = torch.zeros(BATCH, LENGTH, dtype=torch.long)
                with without_sync(strategy, model, micro == micro_steps - 1):
                    loss = loss_of(model, ids)
                    loss.backward()
            with torch.profiler.record_function("backward_done"):
                torch.zeros(1)
            optimizer.step()
            optimizer.zero_grad()
    begins, ends = marks(profiler, "step_begins")[-1], marks(profiler, "backward_done")[-1]
    held = peak = 0
    for time, size in allocations(profiler):
        held += size
        if begins <= time <= ends:
            peak = max(peak, held)
    if rank == 0:
        print(json.dumps({"peak_bytes": peak}))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
