"""LitGPT's fine-tuning loops around its own model code, as published rows were measured with them (Lightning Fabric, bf16-true).

The model code is not part of this repository: give a clone of https://github.com/Lightning-AI/litgpt with ``--litgpt``; the
commit of each row is checked out from it into a temporary folder. Only what decides about memory is restated here: which
variables the loop keeps (``logits`` and ``loss`` live until they are bound again), Fabric's fp32 copy of outputs, quantization
through fp16.
"""

from __future__ import annotations

import contextlib
import importlib
import subprocess
import sys
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any

import torch

from trainbudget.plan.memory import TargetGpu, Trace, trace_step
from trainbudget.plan.quantized import install_stand_in, quantize
from trainbudget.plan.tracing.optimizers import optimizer_of
from trainbudget.plan.train_spec import TrainSpec

BEFORE_RENAMING = ("0cc02afa", "0f021f3a")  # the package was lit_gpt until March 2024
VOCABULARY_CHUNK = 128  # both loops split the head's input into pieces of 128 tokens


def checkout(clone: Path, commit: str) -> Path:
    """A folder with the files of ``commit``."""
    folder = Path(tempfile.gettempdir()) / f"trainbudget-litgpt-{commit}"
    if not (folder / ".complete").exists():
        folder.mkdir(exist_ok=True)
        packed = subprocess.run(["git", "-C", str(clone), "archive", commit], check=True, capture_output=True).stdout
        with tarfile.open(fileobj=BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
        (folder / ".complete").touch()
    return folder


def trace_row(row: dict[str, Any], clone: Path, target: TargetGpu) -> Trace:
    """The traced step of one published row."""
    settings = row["litgpt"]
    sys.path.insert(0, str(checkout(clone, settings["commit"])))
    package = "lit_gpt" if settings["commit"] in BEFORE_RENAMING else "litgpt"
    method = settings["method"]
    module = importlib.import_module(f"{package}.{ {'full': 'model'}.get(method, method) }")
    utils = importlib.import_module(f"{package}.utils")
    spec = TrainSpec(**{**row["spec"], "loop": "plain", "max_grad_norm": None})
    quantization = spec.quantization
    if quantization != "none":
        install_stand_in(spec.quantization_stack)

    def build() -> torch.nn.Module:
        with _default_dtype(torch.bfloat16):
            model = module.GPT(module.Config.from_name(settings["model"], **settings.get("config", {})))
            model.max_seq_length = settings.get("rope_length", spec.sequence_length)
            if method == "lora":
                module.mark_only_lora_as_trainable(model)
            elif method.startswith("adapter"):
                getattr(module, f"mark_only_{method}_as_trainable")(model)
        if quantization != "none":
            # Fabric converts every linear layer, the head too, and quantizes through fp16 (lightning/fabric/plugins/precision)
            quantize(
                model,
                quantization,
                version=spec.quantization_stack,
                compute_dtype=torch.bfloat16,
                stored_dtype=torch.float16,
                head=True,
            )
        if spec.activation_checkpointing:
            _checkpoint_blocks(model)
        return model

    kept: dict[str, Any] = {}
    chunked = method != "full"  # the full fine-tuning loop computes all logits at once

    def step(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> Any:
        with _default_dtype(torch.bfloat16):
            logits = model(batch["ids"], lm_head_chunk_size=VOCABULARY_CHUNK) if chunked else model(batch["ids"])
        pieces = [x.float() for x in logits] if isinstance(logits, list) else logits.float()  # Fabric's convert_output
        del logits
        kept["logits"] = pieces
        if isinstance(pieces, list):
            kept["logits"][-1] = pieces[-1][..., :-1, :]
            del pieces
            kept["loss"] = utils.chunked_cross_entropy(kept["logits"], batch["targets"][..., 1:])
        else:
            del pieces
            kept["loss"] = utils.chunked_cross_entropy(kept["logits"][..., :-1, :], batch["targets"][..., 1:])
        (kept["loss"] / spec.gradient_accumulation).backward()
        return kept["loss"].detach()

    lengths = settings.get("lengths", [spec.sequence_length])
    batches = [
        {k: torch.empty(spec.micro_batch, n, dtype=torch.long, device="meta") for k in ("ids", "targets")} for n in lengths
    ]
    vocabulary = module.Config.from_name(settings["model"]).padded_vocab_size
    return trace_step(
        model=build,
        batches=batches,
        training_step=step,
        optimizer_factory=optimizer_of(spec.optimizer).build,
        target=target,
        spec=spec,
        steps=settings.get("steps", 2),
        vocabulary=vocabulary,
    )


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _checkpoint_blocks(model: torch.nn.Module) -> None:
    """FSDPStrategy(activation_checkpointing_policy={Block}): torch's wrapper around every block, inside the FSDP unit."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    blocks = model.transformer.h
    for index, block in enumerate(blocks):
        blocks[index] = checkpoint_wrapper(block)
