"""Device memory that kernels take besides their inputs and outputs, and what the CUDA context holds outside torch's allocator.

Sizes are read from the kernels' sources (torch 2.13); none is fitted. Unknown workspaces (cuDNN's, cuBLASLt's) are not guessed
here: they widen the interval (``trainbudget.plan.uncertainty``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trainbudget.plan.allocator import KIB, MIB

# CUDABlas workspace: default ":4096:2:16:8" = 2 x 4096 KiB + 8 x 16 KiB; 32 MiB from Hopper on
# (aten/src/ATen/cuda/CublasHandlePool.cpp).
CUBLAS_BYTES = 2 * 4096 * KIB + 8 * 16 * KIB
CUBLAS_HOPPER_BYTES = 32 * MIB

# Embedding backward without sorting serves up to this many indices (aten/src/ATen/native/cuda/Embedding.cu).
EMBEDDING_UNSORTED_INDICES = 3072


def cublas_workspace_bytes(capability: int) -> int:
    """Bytes one cuBLAS handle holds for the life of the process; each thread that multiplies (forward, backward) has one."""
    return CUBLAS_HOPPER_BYTES if capability >= 90 else CUBLAS_BYTES


def context_bytes(capability: int) -> tuple[int, int, int]:
    """(value, low, high) bytes of a CUDA context with torch's kernels loaded lazily (CUDA 11.7 and later).

    300-500 MiB are reported for Ampere and Ada (pytorch issues 107667 and 109888), about 520 MiB for Hopper with cuBLAS and
    NCCL-free training; a library that loads eagerly, or CUDA before 11.7, takes 1.3 GiB. The live measurement replaces this.
    """
    value = 520 * MIB if capability >= 90 else 430 * MIB
    return value, 280 * MIB, 750 * MIB


def kernel_workspace(name: str, args: Sequence[Any]) -> list[int]:
    """Bytes of each buffer the CUDA kernel behind ATen operator ``name`` takes from the caching allocator and returns before
    it ends."""
    rule = _RULES.get(name)
    return [n for n in rule(args) if n > 0] if rule is not None else []


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _flash_backward(args: Sequence[Any]) -> list[int]:
    """flash_api.cpp, mha_bwd: fp32 accumulator of dq, the row sums, and dk/dv expanded to the query heads for grouped queries."""
    q, k = args[1], args[2]
    batch, heads, length, width = q.shape
    rows = _up(length, 128)
    buffers = [batch * heads * rows * 4, batch * heads * rows * _up(width, 32 if width <= 128 else 64) * 4]
    if k.shape[1] != heads:
        buffers += [batch * k.shape[2] * heads * width * q.element_size()] * 2
    return buffers


def _efficient_backward(args: Sequence[Any]) -> list[int]:
    """kernel_backward.h: an fp32 gradient accumulator when the head is wider than 64, and delta."""
    batch, heads, length, width = args[1].shape
    return [batch * heads * length * width * 4 if width > 64 else 0, batch * heads * length * 4]


def _embedding_backward(args: Sequence[Any]) -> list[int]:
    """Sorted and original indices (int64, both double-buffered by the radix sort) beyond the unsorted kernel's limit."""
    indices = args[1].numel()
    return [indices * 8] * 4 if indices > EMBEDDING_UNSORTED_INDICES else []


_RULES: dict[str, Callable[[Sequence[Any]], list[int]]] = {
    "_scaled_dot_product_flash_attention_backward": _flash_backward,
    "_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "embedding_dense_backward": _embedding_backward,
}
