"""Products of groups of rows: shapes against torch's own on real tensors, FLOPs against arithmetic."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from trainbudget.plan.simulated_device.grouped_matmul import grouped_mm, grouped_mm_flops  # noqa: E402


@pytest.mark.skipif(not hasattr(torch.nn.functional, "grouped_mm"), reason="this torch has no grouped products")
@pytest.mark.parametrize(
    ("a", "b", "made"),
    [
        ((24, 16), (3, 16, 8), 2 * 24 * 16 * 8),
        ((3, 5, 16), (16, 24), 2 * 5 * 16 * 24),
        ((16, 24), (24, 8), 2 * 16 * 24 * 8),
        ((3, 5, 16), (3, 16, 8), 2 * 3 * 5 * 16 * 8),
    ],
    ids=["rows by groups", "groups by rows", "rows by rows", "groups by groups"],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_grouped_products_have_the_shape_of_real_ones(a: Any, b: Any, made: int, dtype: Any) -> None:
    one, other = torch.ones(a, dtype=dtype), torch.ones(b, dtype=dtype)
    offs = None if len(a) == len(b) == 3 else torch.tensor([8, 16, 24], dtype=torch.int32)
    real = torch.nn.functional.grouped_mm(one, other, offs=offs)
    found = grouped_mm(one.to("meta"), other.to("meta"), offs if offs is None else offs.to("meta"))
    assert (found.shape, found.dtype) == (real.shape, real.dtype)
    assert grouped_mm_flops(a, b) == made
