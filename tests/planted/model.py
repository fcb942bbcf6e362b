"""Small models and data for real training runs on a CPU: a step takes some 20 ms on an idle core."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

WIDTH = 384
BATCH = 64
#: Token ids of the text model.
VOCABULARY = 256


def one_thread() -> None:
    """The same work whatever the machine: one core, one seed."""
    torch.set_num_threads(1)
    torch.manual_seed(0)


class Net(nn.Module):
    """A regression that can be learned; its forward answers `{"loss": ...}` as Trainers expect."""

    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        self.body = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(depth)))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        out = self.head(self.body(x)).squeeze(-1)
        return {"loss": nn.functional.mse_loss(out, y) if y is not None else out.mean(), "logits": out}


class Rows(Dataset[dict[str, torch.Tensor]]):
    """Rows to learn from. `fetch(i)` is called for each one: that is where a loader is made slow."""

    def __init__(self, count: int, fetch: Callable[[int], None] | None = None, *, broken_from: int | None = None) -> None:
        self.count, self.fetch, self.broken_from = count, fetch, broken_from
        self.weights = torch.randn(WIDTH, generator=torch.Generator().manual_seed(1)) / math.sqrt(WIDTH)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        if self.fetch is not None:
            self.fetch(i)
        x = torch.randn(WIDTH, generator=torch.Generator().manual_seed(i))
        if self.broken_from is not None and i >= self.broken_from:
            x[0] = math.nan
        return {"x": x, "y": torch.sin(x @ self.weights)}


class Texts(Dataset[dict[str, Any]]):
    """Sequences of token ids between `shortest` and `longest` tokens, unpadded."""

    def __init__(self, count: int, *, shortest: int, longest: int) -> None:
        self.count, self.shortest, self.longest = count, shortest, longest

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> dict[str, Any]:
        random = torch.Generator().manual_seed(i)
        length = int(torch.randint(self.shortest, self.longest + 1, (1,), generator=random))
        start = int(torch.randint(0, VOCABULARY, (1,), generator=random))
        return {"input_ids": [(start + 3 * k) % (VOCABULARY - 1) + 1 for k in range(length)]}


def padded(rows: list[dict[str, Any]], *, to: int | None = None) -> dict[str, torch.Tensor]:
    """A batch of texts padded with token 0, to the longest of them or to a fixed length."""
    width = to or max(len(r["input_ids"]) for r in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros(len(rows), width, dtype=torch.long)
    for row, line in enumerate(rows):
        ids[row, : len(line["input_ids"])] = torch.tensor(line["input_ids"])
        mask[row, : len(line["input_ids"])] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


#: torch's own words (c10/cuda/CUDACachingAllocator.cpp, since 2.1), as an 80 GB card that is full of our own tensors says it.
CUDA_OUT_OF_MEMORY = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.25 GiB of which 1.06 GiB is free. "
    "Including non-PyTorch memory, this process has 78.18 GiB memory in use. Of the allocated memory 77.10 GiB is allocated by "
    "PyTorch, and 412.21 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management  "
    "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)
