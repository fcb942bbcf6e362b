"""Reads the numbers out of an out-of-memory message: PyTorch's own in its wordings since 0.4, and those of its neighbours.

The wordings were collected from public issue threads (pytorch/pytorch#16417, #35901, #59778, #60078 and others):

* until 1.x: `(GPU 0; 10.92 GiB total capacity; 8.57 MiB already allocated; 9.28 GiB free; 4.68 MiB cached)`;
* 1.5 to 2.0: `...; 13.77 GiB reserved in total by PyTorch)`, with a per-process cap `...; 5.00 GiB allowed; ...`;
* since 2.1: `GPU 0 has a total capacity of 23.65 GiB of which 11.06 MiB is free. Process 41 has 5.25 GiB memory in use.
  Including non-PyTorch memory, this process has 23.60 GiB memory in use. 9.00 GiB allowed; Of the allocated memory 22.90 GiB
  is allocated by PyTorch, with 55.00 MiB allocated in private pools (e.g., CUDA Graphs), and 194.87 MiB is reserved by
  PyTorch but unallocated.` ("capacty" in 2.1 to 2.2; CUDA, HIP, XPU, NPU before "out of memory");
* MPS, JAX, TensorFlow, NCCL, cuBLAS and the bare driver error have their own words and fewer numbers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_UNITS = {
    "bytes": 1.0, "byte": 1.0, "b": 1.0,
    "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30, "tib": 2.0**40, "pib": 2.0**50, "eib": 2.0**60,
    # torch's MPS and jax print binary multiples under decimal names
    "kb": 2.0**10, "mb": 2.0**20, "gb": 2.0**30, "tb": 2.0**40, "pb": 2.0**50, "eb": 2.0**60,
    "k": 2.0**10, "m": 2.0**20, "g": 2.0**30,
}  # fmt: skip
_SIZE = r"([0-9]+(?:\.[0-9]+)?)\s*(bytes?|[KMGTPE]i?B|[KMG]|B)\b"
#: More than an exbibyte is an overflowed size, not a request (torch prints "more than 1EB memory").
_ABSURD_BYTES = 2.0**60


#: Of a message only this much is read: the numbers come first.
MOST_CHARACTERS = 8000


def _re(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern.replace("SIZE", _SIZE), re.IGNORECASE | re.DOTALL)


_REQUESTED = (
    _re(r"tried to allocate\s+(?:more than\s+)?SIZE"),
    _re(r"trying to allocate\s+SIZE"),
    _re(r"failed to (?:allocate|cuda calloc)\s+(?:request for\s+)?SIZE"),
)
_FIELDS: tuple[tuple[str, tuple[re.Pattern[str], ...]], ...] = (
    ("total_bytes", (_re(r"total capac[a-z]*\s+of\s+SIZE"), _re(r"SIZE\s+total capacity"))),
    ("free_bytes", (_re(r"of which\s+SIZE\s+is\s+free"), _re(r"SIZE\s+free\b"))),
    (
        "allocated_bytes",
        (_re(r"SIZE\s+is allocated by PyTorch"), _re(r"SIZE\s+already allocated"), _re(r"MPS allocated:\s*SIZE")),
    ),
    ("reserved_bytes", (_re(r"SIZE\s+reserved in total"), _re(r"SIZE\s+cached"))),
    ("unallocated_bytes", (_re(r"SIZE\s+is reserved by PyTorch but unallocated"),)),
    ("private_pool_bytes", (_re(r"SIZE\s+(?:is\s+)?allocated in private pools"),)),
    ("process_bytes", (_re(r"this process has\s+SIZE\s+memory in use"),)),
    ("allowed_bytes", (_re(r"SIZE\s+allowed\b"), _re(r"max allowed:\s*SIZE"))),
)
_OTHERS = _re(r"(?<!this )\bprocess\s+\d+\s+has\s+SIZE\s+memory in use")
_GPU = re.compile(r"\bGPU\s+(\d+)", re.IGNORECASE)
#: Words that make an exception a device out-of-memory, whatever its type.
_DEVICE_OOM = re.compile(
    r"(?:CUDA|HIP|XPU|NPU|MPS backend)\s+(?:error:\s*)?out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"
    r"|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|NCCL\b[^\n]{0,80}out of memory"
    r"|Failed to CUDA (?:calloc|malloc)|RESOURCE_EXHAUSTED[^\n]{0,40}(?:Out of memory|OOM)|OOM when allocating",
    re.IGNORECASE,
)
#: A library outside the framework's allocator could not get memory: the allocator holds it all, or others do.
_OUTSIDE = re.compile(
    r"NCCL|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY"
    r"|cudaErrorMemoryAllocation|Failed to CUDA (?:calloc|malloc)",
    re.IGNORECASE,
)
#: The host, not the device: the kernel killed a worker, or /dev/shm is full.
_HOST_KILL = re.compile(
    r"killed by signal:\s*(?:Killed|9\b|Bus error)|Cannot allocate memory|not enough memory: you tried to allocate"
    r"|DefaultCPUAllocator|insufficient shared memory|No space left on device:?\s*'?/dev/shm",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OomNumbers:
    """What a message says, in bytes; None where it does not say it.

    Attributes:
        requested_bytes: the one allocation that failed.
        allocated_bytes, reserved_bytes: this process' allocator at the failure (not after unwinding).
        others_bytes: sum of the other processes the message lists.
        allowed_bytes: the per-process cap, where one is set.
        outside: the request came from a library outside the framework's allocator.
    """

    gpu: int | None = None
    requested_bytes: float | None = None
    total_bytes: float | None = None
    free_bytes: float | None = None
    allocated_bytes: float | None = None
    reserved_bytes: float | None = None
    private_pool_bytes: float | None = None
    process_bytes: float | None = None
    others_bytes: float | None = None
    others_count: int = 0
    allowed_bytes: float | None = None
    outside: bool = False


def parse_oom(text: object) -> OomNumbers | None:
    """The numbers of an out-of-memory message, or None where it is not one, or no text. Bounded work on long texts."""
    if not isinstance(text, str):
        return None
    text = text[:MOST_CHARACTERS]
    if not _DEVICE_OOM.search(text) and "tried to allocate" not in text.lower():
        return None
    if _HOST_KILL.search(text) and not _DEVICE_OOM.search(text):
        return None
    found: dict[str, float | None] = {"requested_bytes": _first(_REQUESTED, text)}
    for name, patterns in _FIELDS:
        found[name] = _first(patterns, text)
    unallocated = found.pop("unallocated_bytes")
    if found["reserved_bytes"] is None and found["allocated_bytes"] is not None and unallocated is not None:
        found["reserved_bytes"] = found["allocated_bytes"] + unallocated
    others = [_bytes(m) for m in _OTHERS.finditer(text)]
    gpu = _GPU.search(text)
    return OomNumbers(
        gpu=int(gpu.group(1)) if gpu else None,
        others_bytes=sum(others) if others else None,
        others_count=len(others),
        outside=_OUTSIDE.search(text) is not None and found["allocated_bytes"] is None,
        **found,
    )


def is_device_oom(type_name: object, message: object) -> bool:
    """Whether an exception is a device running out of memory; what is no text says nothing."""
    text = _text(message)
    if _DEVICE_OOM.search(text):
        return True
    return _HOST_KILL.search(text) is None and _text(type_name).rsplit(".", 1)[-1] == "OutOfMemoryError"


def is_host_oom(type_name: object, message: object) -> bool:
    """Whether an exception says that the host (memory or shared memory), not the device, ran out."""
    text = _text(message)
    if _DEVICE_OOM.search(text):
        return False
    return _text(type_name).rsplit(".", 1)[-1] == "MemoryError" or _HOST_KILL.search(text) is not None


def _text(value: object) -> str:
    return value[:MOST_CHARACTERS] if isinstance(value, str) else ""


def _first(patterns: tuple[re.Pattern[str], ...], text: str) -> float | None:
    for pattern in patterns:
        match = pattern.search(text)
        if match:
            size = _bytes(match)
            return size if size < _ABSURD_BYTES else None
    return None


def _bytes(match: re.Match[str]) -> float:
    return float(match.group(1)) * _UNITS[match.group(2).lower()]
