"""Devices: who they are (`mapping`) and what they say (`nvml`, `mock`, `recorded`), behind one protocol."""

from __future__ import annotations

import os
from pathlib import Path

from trainbudget.errors import ConfigError
from trainbudget.gpu.protocol import (
    AllocatorSource,
    EventSource,
    GpuBackend,
    GpuIdentity,
    Observer,
    ProcessInfo,
    ProcessLookup,
    Simulated,
)

__all__ = [
    "AllocatorSource",
    "EventSource",
    "GpuBackend",
    "GpuIdentity",
    "Observer",
    "ProcessInfo",
    "ProcessLookup",
    "Simulated",
    "open_backend",
]


def open_backend(
    name: str,
    *,
    process_info: ProcessLookup | None = None,
    gpus: int | None = None,
    local_rank: int = 0,
    local_world_size: int = 1,
) -> GpuBackend | None:
    """The backend called `name`, with no driver call made yet (`open` makes the first one); None for `none`.

    Args:
        name: `auto` (NVML; never the mock by itself), `nvml`, `mock` or `mock:SCENARIO[:GIB]` (of memory), `none`, or the path
            of a trace whose readings are played again.
        process_info: looks process ids up for the processes on a device (NVML only).
        gpus: how many cards the mock has; None gives one to each local rank.
        local_rank: the mock drives the card of this rank, and those of the others alike.
        local_world_size: how many ranks of the mock's machine train.

    Raises:
        ConfigError: no such backend, scenario or trace.
    """
    kind, _, detail = name.partition(":")
    if kind == "none":
        return None
    if kind in ("auto", "nvml"):
        from trainbudget.gpu.nvml_backend import NvmlBackend

        return NvmlBackend(process_info=process_info)
    if kind == "mock":
        from trainbudget.gpu.mock import MockBackend

        cards = max(local_world_size, local_rank + 1) if gpus is None else gpus
        scenario, _, memory = detail.partition(":")
        return MockBackend(
            scenario or "healthy",
            gpus=cards,
            local_rank=local_rank,
            local_world_size=local_world_size,
            memory_gib=_gib(memory),
        )
    if os.sep in name or name.endswith((".jsonl", ".gz")):
        from trainbudget.gpu.recorded import RecordedBackend

        if not Path(name).exists():
            raise ConfigError(f"no trace at {name}")
        return RecordedBackend(name)
    raise ConfigError(f"unknown GPU backend {name!r}: use auto, nvml, mock, mock:SCENARIO, none or the path of a trace")


def _gib(text: str) -> float | None:
    """The memory of a mock card; None where nothing is said.

    Raises:
        ConfigError: no number.
    """
    try:
        return float(text) if text else None
    except ValueError:
        raise ConfigError(f"mock: {text!r} is no number of GiB; write for example mock:healthy:24") from None
