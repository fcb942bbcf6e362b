"""Operators whose answer or shape depends on data, which a trace lacks: a plausible answer, the largest possible result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten


def _nonzero(args: tuple[Any, ...]) -> Any:
    return torch.zeros(args[0].numel(), args[0].dim(), dtype=torch.long, device=args[0].device)


def _masked_select(args: tuple[Any, ...]) -> Any:
    shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
    return args[0].new_empty(shape.numel())


def _unique(args: tuple[Any, ...]) -> Any:
    value = args[0]
    positions = torch.zeros(value.shape, dtype=torch.long, device=value.device)
    return value.new_empty(value.numel()), positions, positions.flatten().clone()


def _unique_rows(args: tuple[Any, ...]) -> Any:
    value, dim = args[0], args[1]
    positions = torch.zeros(value.shape[dim], dtype=torch.long, device=value.device)
    return torch.empty_like(value), positions, positions.clone()


#: Operator overload -> its result for the arguments it is called with.
ANSWERS: dict[Any, Callable[[tuple[Any, ...]], Any]] = {
    aten.equal.default: lambda args: True,
    aten.allclose.default: lambda args: True,
    aten.nonzero.default: _nonzero,
    aten.masked_select.default: _masked_select,
    aten._unique2.default: _unique,
    aten.unique_consecutive.default: _unique,
    aten.unique_dim.default: _unique_rows,
}
