"""torch up to 1.10: the backward of softmax kept its input (pytorch issues 49600 and 64000, removed by PR 65242).

Rows measured on such a stack are compared with this restored; a user's own torch never needs it, the tracer runs the installed
one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int) -> torch.Tensor:
        y = torch.ops.aten._softmax(x, dim, False)
        ctx.save_for_backward(x, y)
        ctx.dim = dim
        return y

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, y = ctx.saved_tensors
        return torch.ops.aten._softmax_backward_data(gradient, y, ctx.dim, x.dtype), None


@contextlib.contextmanager
def softmax_keeps_input() -> Iterator[None]:
    """``torch.nn.functional.softmax`` as it was."""
    now = torch.nn.functional.softmax

    def softmax(x: torch.Tensor, dim: int = -1, _stacklevel: int = 3, dtype: Any = None) -> torch.Tensor:
        wide = dtype or (torch.float32 if torch.is_autocast_enabled("cuda") else None)
        return _Softmax.apply(x if wide is None else x.to(wide), dim)

    torch.nn.functional.softmax = softmax
    try:
        yield
    finally:
        torch.nn.functional.softmax = now
