"""CUDA's autocast policy for the simulated device.

The lists are those of ``ATen/autocast_mode.h`` in torch 2.13 and 2.14 (equal). :func:`install_autocast` compares them with
what the installed torch has registered for CUDA and returns what it does not know.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from trainbudget.plan.simulated_device.backend import HALF, KEY, NAME

LOWER_PRECISION = [
    "_convolution.deprecated",
    "_convolution",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_tbc",
    "conv_transpose1d",
    "conv_transpose2d.input",
    "conv_transpose3d.input",
    "convolution",
    "prelu",
    "addmm",
    "addmv",
    "addr",
    "matmul",
    "einsum",
    "mm",
    "mv",
    "linalg_vecdot",
    "linear",
    "addbmm",
    "baddbmm",
    "bmm",
    "chain_matmul",
    "linalg_multi_dot",
    "_thnn_fused_lstm_cell",
    "_thnn_fused_gru_cell",
    "lstm_cell",
    "gru_cell",
    "rnn_tanh_cell",
    "rnn_relu_cell",
    "_scaled_dot_product_flash_attention",
    "scaled_dot_product_attention",
]
FULL_PRECISION = [
    "acos",
    "asin",
    "cosh",
    "erfinv",
    "exp",
    "expm1",
    "log",
    "log10",
    "log2",
    "log1p",
    "reciprocal",
    "rsqrt",
    "sinh",
    "tan",
    "pow.Tensor_Scalar",
    "pow.Tensor_Tensor",
    "pow.Scalar",
    "softplus",
    "layer_norm",
    "native_layer_norm",
    "rms_norm",
    "group_norm",
    "frobenius_norm.dim",
    "nuclear_norm",
    "nuclear_norm.dim",
    "cosine_similarity",
    "poisson_nll_loss",
    "cosine_embedding_loss",
    "nll_loss",
    "nll_loss2d",
    "hinge_embedding_loss",
    "kl_div",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "mse_loss",
    "margin_ranking_loss",
    "multilabel_margin_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "multi_margin_loss",
    "binary_cross_entropy_with_logits",
    "dist",
    "pdist",
    "cdist",
    "renorm",
    "logsumexp",
    "upsample_nearest1d",
    "_upsample_nearest_exact1d",
    "upsample_nearest2d",
    "_upsample_nearest_exact2d",
    "upsample_nearest3d",
    "_upsample_nearest_exact3d",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "_upsample_bilinear2d_aa",
    "upsample_trilinear3d",
    "upsample_bicubic2d",
    "_upsample_bicubic2d_aa",
]
FULL_PRECISION_RESULT = [
    "prod",
    "prod.dim_int",
    "softmax.int",
    "log_softmax.int",
    "cumprod",
    "cumsum",
    "linalg_vector_norm",
    "linalg_matrix_norm",
    "linalg_matrix_norm.str_ord",
    "sum",
    "sum.dim_IntList",
]  # ask for an fp32 result instead of casting the input
FULL_PRECISION_APPENDED = {"norm.Scalar": "ScalarOpt_dtype", "norm.ScalarOpt_dim": "ScalarOpt_dim_dtype"}
WIDEST = [
    "addcdiv",
    "addcmul",
    "atan2",
    "bilinear",
    "cross",
    "dot",
    "vdot",
    "grid_sampler",
    "index_put",
    "tensordot",
    "scatter_add",
]
REFUSED = ["binary_cross_entropy"]
CUDA_ONLY = {"_cudnn_rnn", "cudnn_convolution", "cudnn_convolution_transpose", "linalg_matrix_sqrth"}

_AUTOCAST_KEY = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, "Autocast" + KEY))
_weight_casts: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}  # emptied whenever torch empties its own cache


def forget_weight_casts() -> None:
    """Drop the cached half-precision copies of the weights, as the end of the outermost autocast region does."""
    _weight_casts.clear()


def install_autocast(library: torch.library.Library) -> list[str]:
    """Register the policy; returns the operators in this torch's CUDA policy that the lists above lack."""
    known = set(CUDA_ONLY)

    def put(names: Iterable[str], kernel_of: Callable[[Any], Callable[..., Any]]) -> None:
        for name in names:
            known.add(name)
            op = _operator(name)
            if op is not None and torch._C._dispatch_has_kernel_for_dispatch_key("aten::" + name, "AutocastCUDA"):
                library.impl(name, kernel_of(op), "Autocast" + KEY)

    put(LOWER_PRECISION, lambda op: _casting(op, lambda _: _lower_dtype()))
    put(FULL_PRECISION, lambda op: _casting(op, lambda _: torch.float32))
    put(WIDEST, lambda op: _casting(op, _widest))
    put(FULL_PRECISION_RESULT, _asking_for_fp32)
    put(REFUSED, lambda _: _refusing)
    for name, overload in FULL_PRECISION_APPENDED.items():
        put([name], lambda op, overload=overload: _appending_fp32(op, getattr(torch.ops.aten.norm, overload)))  # type: ignore[misc]
    policy = [
        name[len("aten::") :]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::") and torch._C._dispatch_has_kernel_for_dispatch_key(name, "AutocastCUDA")
    ]
    return sorted(set(policy) - known)


def _operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)


def _lower_dtype() -> torch.dtype:
    return torch.get_autocast_dtype(NAME)


def _eligible(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and value.dtype != torch.float64
        and value.device.type == NAME
    )


def _widest(args: tuple[Any, ...]) -> torch.dtype:
    wide = any(_eligible(t) and t.dtype == torch.float32 for t in tree_leaves(args))
    return torch.float32 if wide else _lower_dtype()


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, (list, tuple)) and any(isinstance(t, torch.Tensor) for t in value):
        return [_cast(t, dtype) for t in value]
    if not _eligible(value) or value.dtype == dtype:
        return value
    weight = value.dtype == torch.float32 and value.requires_grad and value.is_leaf and not value._is_view()
    if not (weight and dtype in HALF and torch.is_autocast_cache_enabled()):
        return value.to(dtype)
    hit = _weight_casts.get(id(value))
    if hit is not None and hit[0]() is value:
        return hit[1]
    cast = value.to(dtype)
    _weight_casts[id(value)] = (weakref.ref(value), cast)
    return cast


def _casting(op: Any, dtype_of: Callable[[tuple[Any, ...]], torch.dtype]) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_KEY):
            dtype = dtype_of(args)
            cast = [_cast(a, dtype) for a in reversed(args)]  # last argument first: the order of the casts in torch's gcc builds
            return op(*reversed(cast), **{k: _cast(v, dtype) for k, v in kwargs.items()})

    return kernel


def _asking_for_fp32(op: Any) -> Callable[..., Any]:
    names = [a.name for a in op._schema.arguments]
    index = names.index("dtype")
    keyword_only = op._schema.arguments[index].kwarg_only

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_KEY):
            if _eligible(args[0]):
                if keyword_only or len(args) <= index:
                    if kwargs.get("dtype") is None:
                        kwargs["dtype"] = torch.float32
                elif args[index] is None:
                    args = (*args[:index], torch.float32, *args[index + 1 :])
            return op(*args, **kwargs)

    return kernel


def _appending_fp32(op: Any, with_dtype: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_KEY):
            if not _eligible(args[0]):
                return op(*args, **kwargs)
            if len(op._schema.arguments) == 4 and len(args) < 4:
                args = (*args, False)  # keepdim has no default in the overload with dtype
            return with_dtype(*args, **kwargs, dtype=torch.float32)

    return kernel


def _refusing(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("binary_cross_entropy is refused under CUDA autocast: use binary_cross_entropy_with_logits")
