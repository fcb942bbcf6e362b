"""Operators whose CUDA form differs from the composite one: attention, softmax and three fused ones.

Which attention kernel runs follows torch's own selection (``ATen/native/transformers/cuda/sdp_utils.cpp``, torch 2.13) for the
*target* GPU: flash for half precision without a mask from compute capability 8.0 on, else memory-efficient, else the
materialised one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from trainbudget.plan.simulated_device.backend import HALF, KEY, PORTABLE

aten = torch.ops.aten

# Composite unless the backend has a kernel, and CUDA has one: every such operator of torch 2.14's CUDA build, asked of its
# dispatcher. With any kernel here autograd uses its fused formula and FakeTensorMode answers, as on CUDA.
FUSED_ON_CUDA = ("silu_backward", "mish_backward", "_fused_rms_norm")


class AttentionTarget:
    """The card attention is routed for; set by the tracer of this process before it runs."""

    capability: int = 80
    forced: str | None = None  # "flash", "efficient" or "math"


def install_kernels(library: torch.library.Library) -> None:
    """Register the operators on the simulated device's dispatch keys."""
    library.impl("scaled_dot_product_attention", scaled_dot_product_attention, "Autograd" + KEY)
    library.impl("softmax.int", _softmax_of(aten._softmax), "Autograd" + KEY)
    library.impl("log_softmax.int", _softmax_of(aten._log_softmax), "Autograd" + KEY)
    if not PORTABLE:
        library.impl("dropout", _dropout, "AutogradCPU")  # the CPU's keeps a float mask
        return
    for name in FUSED_ON_CUDA:
        if hasattr(aten, name):
            library.impl(name, _never, "PrivateUse1")


def _dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    return aten.native_dropout(x, p, train)[0] if train and 0 < p < 1 else x


def _never(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("a kernel of the simulated device was called outside FakeTensorMode")


def _softmax_of(kernel: Any) -> Callable[..., torch.Tensor]:
    def softmax(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        if x.dtype == torch.float16 and dtype == torch.float32:
            return kernel(x, dim, True)  # CUDA converts inside the kernel: no fp32 copy of the input
        if dtype is not None:
            x = x.to(dtype)
        return kernel(x, dim, False)

    return softmax


def attention_kernel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, grouped: bool) -> str:
    """The kernel torch takes on the target: ``flash``, ``efficient`` or ``math``."""
    if AttentionTarget.forced:
        return AttentionTarget.forced
    same_width = q.shape[-1] == k.shape[-1] == v.shape[-1]
    flash = q.dtype in HALF and mask is None and AttentionTarget.capability >= 80 and same_width and q.shape[-1] <= 256
    if flash and q.dim() == 4 and torch.backends.cuda.flash_sdp_enabled():
        return "flash"
    half_ok = q.dtype != torch.bfloat16 or AttentionTarget.capability >= 80
    heads_equal = q.shape[-3] == k.shape[-3] if q.dim() >= 3 else True
    aligned = q.shape[-1] % (8 if q.dtype in HALF else 4) == 0
    efficient = half_ok and heads_equal and aligned and q.dtype != torch.float64
    if efficient and q.dim() == 4 and torch.backends.cuda.mem_efficient_sdp_enabled():
        return "efficient"
    return "math"


def scaled_dot_product_attention(  # noqa: PLR0917 - torch's own signature
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """``torch.nn.functional.scaled_dot_product_attention`` as the target GPU would run it."""
    kernel = attention_kernel(q, k, v, attn_mask, enable_gqa)
    if kernel == "flash":
        width = q.shape[-1]
        if width % 8:  # torch pads the head to a multiple of 8 and cuts the result
            q, k, v = (torch.nn.functional.pad(t, (0, 8 - width % 8)) for t in (q, k, v))
            scale = scale if scale is not None else width**-0.5
        out = aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal, scale=scale)[0]
        return out[..., :width] if width % 8 else out
    if enable_gqa and k.shape[-3] != q.shape[-3] and kernel == "efficient":
        k, v = (t.repeat_interleave(q.shape[-3] // t.shape[-3], -3) for t in (k, v))
    if kernel == "efficient":
        bias = None if attn_mask is None else _efficient_bias(attn_mask, q, k)
        keep_sums = any(t.requires_grad for t in (q, k, v))
        return aten._scaled_dot_product_efficient_attention(q, k, v, bias, keep_sums, dropout_p, is_causal, scale=scale)[0]
    return aten._scaled_dot_product_attention_math(
        q, k, v, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )[0]


def _efficient_bias(mask: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """The additive mask the efficient kernel reads: a bool mask becomes one of q's dtype; rows are aligned to 16 elements."""
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill_(mask.logical_not(), float("-inf"))
    elif mask.dtype != q.dtype:
        mask = mask.to(q.dtype)
    width = mask.shape[-1]
    if width % 16:
        mask = torch.nn.functional.pad(mask, (0, 16 - width % 16))[..., :width]
    return mask.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
