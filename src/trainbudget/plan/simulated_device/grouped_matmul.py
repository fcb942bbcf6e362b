"""Products of groups of rows, each with its own matrix: how a mixture of experts runs its experts.

CUDA multiplies every dtype (`aten/src/ATen/native/cuda/GroupedBlas.cpp`, `_grouped_mm_cuda` with its fall-back); torch's own
shape function (`torch/_meta_registrations.py`) knows bf16 only and counts no FLOPs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, register_flop_formula

#: Rows of the result start at multiples of this, bytes (`create_grouped_gemm_output_tensor`).
ROW_BYTES = 16


def install_grouped_matmul(library: torch.library.Library) -> None:
    """Register the shape function and the FLOPs, where torch has the operator (2.10, the first with a simulated device, has)."""
    packet = getattr(torch.ops.aten, "_grouped_mm", None)
    if packet is None:
        return
    library.impl("_grouped_mm", grouped_mm, "Meta", allow_override=True)
    if packet not in flop_registry:
        register_flop_formula(packet)(grouped_mm_flops)


def grouped_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """An empty result: [rows, n] of [rows, k] and [groups, k, n]; [m, rows] of [groups, m, k] and [k, rows]; [groups, m, n] of
    [m, rows] and [rows, n], or of [groups, m, k] and [groups, k, n]."""
    dtype = out_dtype or mat_a.dtype
    columns = mat_b.size(-1)
    rows = mat_a.size(-2)
    per_row = ROW_BYTES // dtype.itemsize
    stride = -(-columns // per_row) * per_row
    if mat_a.dim() != mat_b.dim():
        return torch.empty_strided((rows, columns), (stride, 1), dtype=dtype, device=mat_a.device)
    groups = mat_a.size(0) if offs is None or mat_a.dim() == 3 else offs.size(0)
    return torch.empty_strided((groups, rows, columns), (rows * stride, stride, 1), dtype=dtype, device=mat_a.device)


def grouped_mm_flops(mat_a: Any, mat_b: Any, *_: Any, **__: Any) -> int:
    """Multiplications and additions, each row with its own group's matrix only. Takes shapes, as torch's formulas do."""
    each = 2 * mat_b[-1]
    for size in mat_a:
        each *= size
    return each // mat_a[0] if len(mat_a) == 3 and len(mat_b) == 2 else each
