"""How many layers a model configuration has, and the same configuration with another number of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: The names by which configurations say their depth (sources: transformers' configuration classes).
_NAMES = ("num_hidden_layers", "n_layer", "n_layers")


def depth_of(values: Mapping[str, Any]) -> int | None:
    """Layers of a model that is one stack of them; None where it is something else or tells its layers apart."""
    named = [n for n in _NAMES if isinstance(values.get(n), int)]
    parts = any(isinstance(v, Mapping) and any(n in v for n in _NAMES) for v in values.values())
    if len(named) != 1 or parts or values.get("is_encoder_decoder"):
        return None
    depth = int(values[named[0]])
    lists = [v for v in values.values() if isinstance(v, list) and len(v) == depth]
    return depth if all(v[i] == v[0] for v in lists for i in range(depth)) else None


def with_depth(values: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """The configuration with so many layers; lists of one entry a layer are cut with it."""
    depth = depth_of(values)
    cut = {k: v[:layers] for k, v in values.items() if isinstance(v, list) and len(v) == depth}
    return {**values, **cut, **{n: layers for n in _NAMES if isinstance(values.get(n), int)}}
