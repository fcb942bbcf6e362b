"""Losses that are reduced in place: the scalar keeps the storage of the unreduced loss.

``mse_loss`` and ``smooth_l1_loss`` are given a result of the full shape, compute the full loss beside it and shrink the result
(aten/src/ATen/native/Loss.cpp); ``soft_margin_loss`` and ``binary_cross_entropy`` compute in the result and shrink it (Loss.cpp,
cuda/Loss.cu). torch's shape rules know only the scalar.
"""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten

#: Operator -> (place of ``reduction``, whether the full loss exists beside the result).
SHRUNK = {
    aten.mse_loss: (2, True),
    aten.smooth_l1_loss: (2, True),
    aten.soft_margin_loss: (2, False),
    aten.binary_cross_entropy: (3, False),
}
_NONE = 0  # at::Reduction::None
_MEAN = 1


def with_full_storage(packet: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> tuple[Any, int]:
    """The result as the kernel leaves it, and the bytes of the full loss beside it (0: none)."""
    place, beside = SHRUNK[packet]
    reduction = args[place] if len(args) > place else kwargs.get("reduction", _MEAN)
    if reduction == _NONE or not isinstance(out, torch.Tensor):
        return out, 0
    shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
    full = out.new_empty(shape)
    size = full.untyped_storage().nbytes()
    if size <= out.element_size():
        return out, 0
    return full.as_strided((), ()), size if beside else 0
