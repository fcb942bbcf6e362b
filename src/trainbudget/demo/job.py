"""What the demo trains: real text, a small model, and a loader that can be made to wait."""

from __future__ import annotations

import ast
import random
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainbudget.monitor import Monitor

#: Scenarios in which the demo's own loader is slow, and by how many seconds a batch.
SLOW_LOADER_S = {"input_bound": 0.05}
LONGEST = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One demo run, the same for every framework."""

    steps: int
    batch_size: int
    scenario: str
    output: Path
    seed: int = 0


def docstrings(limit: int = 4000, seed: int = 0) -> list[str]:
    """Docstrings of the standard library, in a shuffled order that is the same every time."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    random.Random(seed).shuffle(files)  # noqa: S311 - order, not secrets
    out: list[str] = []
    for file in files:
        try:
            tree = ast.parse(file.read_text(encoding="utf-8"))
        except (OSError, SyntaxError, UnicodeDecodeError):
            continue
        kinds = (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef, ast.Module)
        texts = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds))
        out += [text for text in texts if text and len(text) > 20]
        if len(out) >= limit:
            break
    return out[:limit]


class TextData:
    """Byte-level examples of their own lengths; `slow_s` makes each batch's preparation take that long."""

    def __init__(self, texts: list[str], *, slow_s: float = 0.0, batch_size: int = 1) -> None:
        self._texts, self._pause_s = texts, slow_s / max(1, batch_size)

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self._pause_s:
            time.sleep(self._pause_s)  # what a slow disk or a tokeniser on the fly does
        return {"input_ids": list(self._texts[index].encode("utf-8")[:LONGEST])}


def collate(examples: list[dict[str, Any]]) -> dict[str, Any]:
    """Pad to the longest of the batch, as the usual collators do."""
    import torch

    longest = max(len(e["input_ids"]) for e in examples)
    ids = torch.zeros((len(examples), longest), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, example in enumerate(examples):
        length = len(example["input_ids"])
        ids[row, :length] = torch.tensor(example["input_ids"])
        mask[row, :length] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def data(job: Job) -> tuple[TextData, TextData]:
    """Training and evaluation examples."""
    texts = docstrings(seed=job.seed)
    held_out = max(8, len(texts) // 50)
    slow_s = SLOW_LOADER_S.get(job.scenario, 0.0)
    return TextData(texts[held_out:], slow_s=slow_s, batch_size=job.batch_size), TextData(texts[:held_out])


def model(job: Job) -> Any:
    """A small decoder with random weights: 2 layers, 96 wide, one token a byte."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(job.seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256,
            hidden_size=96,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=LONGEST,
        )
    )


def train(framework: str, job: Job, monitor: Monitor) -> None:
    """Run the job with one of the frameworks, watched by `monitor`."""
    import torch

    torch.set_num_threads(1)  # small tensors: a second thread only waits for the first
    from trainbudget.demo import frameworks

    {"huggingface": frameworks.huggingface, "lightning": frameworks.lightning, "loop": frameworks.loop}[framework](job, monitor)
