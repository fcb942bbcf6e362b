"""flash-attn without the package: an attention function for transformers that keeps and takes what its kernels do."""

from __future__ import annotations

from typing import Any

import torch

NAME = "trainbudget_flash"


def use_flash_attention(model: torch.nn.Module) -> None:
    """Every part of the model attends through :func:`flash_attention` from now on."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, flash_attention_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, flash_attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, flash_attention_mask)
    for module in model.modules():
        config = getattr(module, "config", None)
        if config is not None and hasattr(config, "_attn_implementation"):
            config._attn_implementation = NAME


def flash_attention(  # noqa: PLR0917 - transformers' own signature
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention over [batch, heads, length, width]; queries, keys, values, output and row sums are kept for the backward."""
    if query.dtype == torch.float32:  # flash kernels have no fp32: transformers casts to the autocast or model dtype
        half = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else torch.bfloat16
        query, key, value = (t.to(half) for t in (query, key, value))
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    out = torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, dropout, bool(causal), scale=scaling)[0]
    return out.transpose(1, 2), None
