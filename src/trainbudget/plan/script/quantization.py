"""Quantized models and bitsandbytes in a planned script: stand-ins, so that the library and its kernels need not be there."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from trainbudget.plan.quantized import install_stand_in, quantize
from trainbudget.plan.simulated_device.cuda import Patches
from trainbudget.plan.tracing.optimizers import BlockwiseAdam, KernelAdam

#: Optimizers of bitsandbytes: state tensors, bits an element.
_BITSANDBYTES = {
    "Adam": (2, 32),
    "Adam8bit": (2, 8),
    "AdamW": (2, 32),
    "AdamW8bit": (2, 8),
    "PagedAdamW8bit": (2, 8),
    "Lion": (1, 32),
    "Lion8bit": (1, 8),
    "SGD8bit": (1, 8),
}


def quantization_kind(config: Any, kwargs: dict[str, Any]) -> str:
    """Our name for a quantization configuration: none, nf4, nf4_double, fp4, fp4_double, int8; `unknown` for any other."""
    values = config if isinstance(config, dict) else getattr(config, "__dict__", {}) or {}
    values = {k.lstrip("_"): v for k, v in values.items()}
    if config is None and not (kwargs.get("load_in_4bit") or kwargs.get("load_in_8bit")):
        return "none"
    if values.get("load_in_4bit") or kwargs.get("load_in_4bit"):
        kind = values.get("bnb_4bit_quant_type", "fp4")
        return f"{kind}_double" if values.get("bnb_4bit_use_double_quant") else str(kind)
    if values.get("load_in_8bit") or kwargs.get("load_in_8bit"):
        return "int8"
    return "unknown"


def quantized(model: Any, kind: str, config: Any) -> Any:
    """The model with quantized layers, as its configuration says."""
    values = config if isinstance(config, dict) else getattr(config, "__dict__", {})
    dtype = values.get("bnb_4bit_compute_dtype")
    dtype = getattr(torch, dtype.removeprefix("torch.")) if isinstance(dtype, str) else dtype
    with torch.device("meta"):
        model = quantize(model, kind, compute_dtype=dtype, skip=tuple(values.get("llm_int8_skip_modules") or ()))
    # What Trainer asks of the quantizer before it trains adapters.
    model.hf_quantizer = SimpleNamespace(
        is_trainable=True,
        is_qat_trainable=False,
        is_compileable=False,
        quantization_config=SimpleNamespace(quant_method="bitsandbytes"),
    )
    return model


def bitsandbytes_stands_in(patches: Patches) -> None:
    """`import bitsandbytes` gives layers and optimizers that run without its kernels; call it before peft is imported."""
    package = install_stand_in()
    optimizers = ModuleType("bitsandbytes.optim")
    for name, (tensors, bits) in _BITSANDBYTES.items():
        setattr(optimizers, name, _stand_in_optimizer(tensors, bits))
    package.optim = optimizers  # type: ignore[attr-defined]
    sys.modules["bitsandbytes.optim"] = optimizers
    version = importlib.metadata.version
    patches.put(importlib.metadata, "version", lambda name: package.__version__ if name == "bitsandbytes" else version(name))


def _stand_in_optimizer(tensors: int, bits: int) -> Callable[..., Any]:
    def build(params: Any, *args: Any, **kwargs: Any) -> Any:
        return KernelAdam(params, tensors=tensors) if bits > 8 else BlockwiseAdam(params, tensors=tensors)

    return build
