"""The readings of a trace, played again at the speed at which they were taken."""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path

import msgspec

from trainbudget.errors import ConfigError, TraceError
from trainbudget.events import Allocator, Event, Gpu, Header, Reading
from trainbudget.gpu.protocol import BackendName, GpuIdentity, identity_of
from trainbudget.trace import read_trace


class RecordedBackend:
    """Devices out of a trace. Implements `GpuBackend`, `AllocatorSource`, `EventSource` and `Simulated`.

    The first call after `open` starts the play at the trace's first reading. A reading is given once; between two
    readings, and after the last one, nothing is known and every field is None. The UUIDs are those of the recorded
    devices, the processes are those of then.
    """

    name: BackendName = "recorded"

    def __init__(self, path: str | Path) -> None:
        self.driver_version: str | None = None
        self._path = Path(path)
        self._gpus: dict[int, Gpu] = {}
        self._own: list[str] = []
        self._readings: dict[int, list[Reading]] = {}
        self._given: dict[int, int] = {}
        self._allocators: list[Allocator] = []
        self._moments: list[Event] = []
        self._start_s = 0.0
        self._offset_s: float | None = None  # from the caller's seconds to the trace's

    @property
    def identities(self) -> tuple[GpuIdentity, ...]:
        return tuple(identity_of(gpu) for gpu in self._facts())

    @property
    def framework_uuids(self) -> tuple[str, ...]:
        """The recorded run's own devices first, then the others."""
        others = [gpu.uuid for gpu in self._facts() if gpu.uuid and gpu.uuid not in self._own]
        return (*self._own, *others)

    @property
    def used_ordinals(self) -> tuple[int, ...]:
        """Those that were the recorded run's own."""
        return tuple(range(len(self._own)))

    def open(self) -> tuple[Gpu, ...]:
        """The recorded devices.

        Raises:
            ConfigError: the file is not a trace, or is one without readings.
        """
        if not self._readings:
            self._load()
        return self._facts()

    def read(self, gpu: int | str, *, now_s: float) -> Reading:
        index = self._index_of(gpu)
        readings = self._readings.get(index, [])
        place = bisect_right(readings, self._trace_second(now_s), key=lambda reading: reading.t_s)
        if place <= self._given.get(index, 0):
            return Reading(t_s=now_s, gpu=index)
        self._given[index] = place
        return msgspec.structs.replace(readings[place - 1], t_s=now_s)

    def allocator(self, now_s: float) -> tuple[Allocator, ...]:
        place = bisect_right(self._allocators, self._trace_second(now_s), key=lambda fact: fact.t_s)
        due, self._allocators = self._allocators[:place], self._allocators[place:]
        return tuple(msgspec.structs.replace(fact, t_s=fact.t_s + now_s - self._trace_second(now_s)) for fact in due)

    def events(self, now_s: float) -> tuple[Event, ...]:
        place = bisect_right(self._moments, self._trace_second(now_s), key=lambda fact: fact.t_s)
        due, self._moments = self._moments[:place], self._moments[place:]
        return tuple(msgspec.structs.replace(fact, t_s=now_s) for fact in due)

    def close(self) -> None:
        """Nothing is held."""

    def _facts(self) -> tuple[Gpu, ...]:
        return tuple(self._gpus[index] for index in sorted(self._gpus))

    def _load(self) -> None:
        try:
            for fact in read_trace(self._path):
                self._take(fact)
        except TraceError as err:
            raise ConfigError(str(err)) from err
        if not self._readings:
            raise ConfigError(f"{self._path} holds no device readings to play")
        self._start_s = min(readings[0].t_s for readings in self._readings.values())

    def _take(self, fact: object) -> None:
        if isinstance(fact, Header):
            self.driver_version = fact.driver_version
        elif isinstance(fact, Gpu):
            if fact.owned and fact.uuid and fact.uuid not in self._own:
                self._own.append(fact.uuid)
            self._gpus[fact.gpu] = msgspec.structs.replace(fact, t_s=0.0, owned=None, visible=None)
        elif isinstance(fact, Reading):
            self._readings.setdefault(fact.gpu, []).append(fact)
            self._gpus.setdefault(fact.gpu, Gpu(gpu=fact.gpu))
        elif isinstance(fact, Allocator):
            self._allocators.append(fact)
        elif isinstance(fact, Event) and fact.event == "xid":
            self._moments.append(fact)

    def _trace_second(self, now_s: float) -> float:
        if self._offset_s is None:
            self._offset_s = self._start_s - now_s
        return now_s + self._offset_s

    def _index_of(self, gpu: int | str) -> int:
        for index, fact in self._gpus.items():
            if gpu in (index, fact.uuid):
                return index
        raise LookupError(f"no device {gpu!r}")
