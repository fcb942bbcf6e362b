"""A stand-in for `torch.cuda` at the boundary of torch's public API: what the probes call, with scripted answers.

Events complete when the test says so; every call is counted by name.
"""

from __future__ import annotations

import types
from collections import Counter
from typing import Any


class FakeEvent:
    """An event recorded at the fake stream's clock."""

    def __init__(self, cuda: FakeCuda, *, enable_timing: bool) -> None:
        assert enable_timing, "an event without timing measures nothing"
        self._cuda = cuda
        self.at_ms: float | None = None

    def record(self) -> None:
        self._cuda.calls["record"] += 1
        self._cuda.maybe_raise("record")
        self.at_ms = self._cuda.stream_ms

    def query(self) -> bool:
        self._cuda.calls["query"] += 1
        self._cuda.maybe_raise("query")
        return self.at_ms is not None and self.at_ms <= self._cuda.completed_ms

    def elapsed_time(self, other: FakeEvent) -> float:
        self._cuda.maybe_raise("elapsed_time")
        assert self.at_ms is not None
        assert other.at_ms is not None
        assert other.query(), "asking for the time before completion blocks nobody but is an error in CUDA"
        return other.at_ms - self.at_ms


class FakeCuda:
    """`torch.cuda` of `devices` cards. `synchronize` is an error: nothing of ours may call it."""

    def __init__(self, devices: int = 1) -> None:
        self.calls: Counter[str] = Counter()
        self.stream_ms = 0.0
        self.completed_ms = float("inf")
        self.initialized = True
        self.capturing = False
        self.raising: dict[str, Exception] = {}
        self.uuids = [f"{n:08x}-1111-2222-3333-444444444444" for n in range(devices)]
        self.stats: list[dict[str, Any]] = [dict(_STATS) for _ in range(devices)]

    def maybe_raise(self, name: str) -> None:
        if name in self.raising:
            raise self.raising[name]

    def is_initialized(self) -> bool:
        return self.initialized

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def Event(self, enable_timing: bool = False) -> FakeEvent:
        return FakeEvent(self, enable_timing=enable_timing)

    def device_count(self) -> int:
        self.maybe_raise("device_count")
        return len(self.stats)

    def get_device_properties(self, ordinal: int) -> Any:
        self.maybe_raise("get_device_properties")
        return types.SimpleNamespace(uuid=self.uuids[ordinal])

    def memory_reserved(self, ordinal: int) -> int:
        return int(self.stats[ordinal]["reserved_bytes.all.current"])

    def memory_stats(self, ordinal: int) -> dict[str, Any]:
        self.calls["memory_stats"] += 1
        self.maybe_raise("memory_stats")
        return self.stats[ordinal]

    def synchronize(self, *args: Any) -> None:
        raise AssertionError("the monitor must never synchronize")


_STATS = {
    "allocated_bytes.all.current": 100,
    "allocated_bytes.all.peak": 150,
    "reserved_bytes.all.current": 200,
    "reserved_bytes.all.peak": 250,
    "active_bytes.all.current": 110,
    "inactive_split_bytes.all.current": 20,
    "num_alloc_retries": 1,
    "num_ooms": 0,
}


def fake_torch(cuda: FakeCuda) -> types.ModuleType:
    """A module to stand at `sys.modules["torch"]`."""
    module = types.ModuleType("torch")
    module.cuda = cuda  # type: ignore[attr-defined]
    return module
