"""What a batch holds, read from host memory only: a tensor on a GPU is never touched beyond its shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class BatchFacts(NamedTuple):
    """Counts of one (micro-)batch; None = cannot be told without waiting for a device."""

    samples: float | None = None
    tokens: float | None = None
    useful_tokens: float | None = None
    max_sequence_tokens: float | None = None


def host_number(value: Any) -> float | None:
    """A number of any kind (Python's, numpy's, a tensor of one element) as a float, or None where it is none or cannot
    be had without waiting for a device."""
    if type(value) in (float, int):
        return float(value)
    if value is None or not _on_host(value):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return None


def describe_batch(batch: Any) -> BatchFacts:
    """Samples, tokens and padding of a batch as the usual collators build it: a mapping with `input_ids` and, where it
    is padded, `attention_mask`; else the first tensor's length is the number of samples.
    """
    if isinstance(batch, Mapping) or hasattr(batch, "keys"):
        ids = _get(batch, "input_ids")
        shape = _shape(ids)
        if shape is not None and len(shape) == 2:
            return BatchFacts(float(shape[0]), float(shape[0] * shape[1]), _useful(batch, shape), float(shape[1]))
        for name in batch.keys():  # noqa: SIM118 - BatchEncoding and others iterate differently
            shape = _shape(_get(batch, name))
            if shape:
                return BatchFacts(samples=float(shape[0]))
        return BatchFacts()
    if isinstance(batch, (list, tuple)) and batch:
        shape = _shape(batch[0])
        return BatchFacts(samples=float(shape[0])) if shape else BatchFacts()
    shape = _shape(batch)
    return BatchFacts(samples=float(shape[0])) if shape else BatchFacts()


def _useful(batch: Any, shape: tuple[int, ...]) -> float | None:
    """Tokens that are not padding: the mask's sum, on the host only."""
    mask = _get(batch, "attention_mask")
    if mask is None or _shape(mask) != shape or not _on_host(mask):
        return None
    return float(mask.sum())


def _get(batch: Any, name: str) -> Any:
    try:
        return batch[name]
    except (KeyError, TypeError, IndexError):
        return None


def _shape(value: Any) -> tuple[int, ...] | None:
    shape = getattr(value, "shape", None)
    try:
        return tuple(int(n) for n in shape) if shape is not None and len(shape) else None
    except (TypeError, ValueError):
        return None


def _on_host(value: Any) -> bool:
    device = getattr(value, "device", None)
    return device is None or getattr(device, "type", str(device)) == "cpu"
