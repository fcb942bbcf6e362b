"""One GPU: what it is, what it answered last, a window of readings, its allocator, its errors."""

from __future__ import annotations

import copy
from collections import deque
from typing import TypeVar

import msgspec

from trainbudget.engine.tracks.load import LoadTrack
from trainbudget.engine.tracks.memory import MemoryTrack
from trainbudget.engine.tracks.rest import RestTrack
from trainbudget.events import Allocator, Gpu, Reading

#: NVML codes after which a device is gone: 15 lost, 16 reset required, 28 not found (NVML API reference, nvmlReturn_t).
LOST_CODES = frozenset({15, 16, 28})
#: Codes that only say "this device cannot tell": 3 not supported, 4 no permission, 13 function not found, 25 version mismatch.
UNSUPPORTED_CODES = frozenset({3, 4, 13, 25})
#: At most a quarter of an hour at one reading a second.
WINDOW_READINGS = 900
#: Readings kept apart before they are merged although nobody looked.
MERGE_READINGS = 16
#: Utilization below this is idle: a desktop or a monitoring query alone shows 0-4 %.
IDLE_UTILIZATION = 0.05
#: Readings without work since training began after which a device counts as unused: 20, or those of a minute (at least 5).
QUIET_READINGS = 20
QUIET_LEAST = 5
QUIET_S = 60.0
#: A context with nothing in it takes 250-500 MiB (PyTorch issues 107667, 109888); more than this is work.
CONTEXT_BYTES = 1024**3


_F = TypeVar("_F", Reading, Allocator)


class Sample(msgspec.Struct):
    """The part of a reading that is compared over time; None = not answered."""

    t_s: float
    utilization_ratio: float | None
    power_w: float | None
    memory_used_bytes: float | None
    sm_clock_hz: float | None
    temperature_c: float | None
    sm_active_ratio: float | None
    pcie_gen: int | None
    pcie_width: int | None
    throttle: tuple[str, ...] | None


class DeviceTrack:
    """Facts of one device. `last` merges partial readings: the newest answer of each query."""

    def __init__(self, info: Gpu) -> None:
        self.info = info
        self.since_s = info.t_s
        self.window: deque[Sample] = deque(maxlen=WINDOW_READINGS)
        self.load = LoadTrack()
        self._last: Reading | None = None
        self._newer: list[Reading] = []  # readings since `_last` was merged
        self.last_reading_s: float | None = None  # any reading line
        self.last_answer_s: float | None = None  # a reading in which something was answered
        self.readings = 0
        self.errors: dict[str, int] = {}  # queries that failed in the newest reading that asked them
        self.errors_total: dict[str, int] = {}
        self.error_since_s: dict[str, float] = {}
        self._answered: set[str] = set()
        self.memory = MemoryTrack()
        self._allocator: Allocator | None = None
        self._allocators: list[Allocator] = []  # lines since it was merged
        self.allocator_first: Allocator | None = None
        self.peak_allocated_bytes: float | None = None
        self.peak_reserved_bytes: float | None = None
        self.peak_used_bytes: float | None = None
        self.lost_since_s: float | None = None
        self.lost_code: int | None = None
        self.energy_first_j: float | None = None
        self.active = False  # has ever worked or held memory of ours since training began
        self.idle_since_s: float | None = None
        self._tells_utilization = False
        self._rest = RestTrack()
        self._quiet_readings = 0
        self._quiet_since_s = 0.0
        self._minute: deque[tuple[float, float]] = deque()  # (t_s, utilization) of the last minute
        self._minute_sum = 0.0

    # --- what it is

    @property
    def index(self) -> int:
        return self.info.gpu

    @property
    def owned(self) -> bool:
        return self.info.owned is not False

    @property
    def charged(self) -> bool:
        """Owned, or visible to the job and left unused."""
        return self.owned or self.info.visible is True

    @property
    def unused(self) -> bool:
        """Nothing of ours has ever run on it: known only after 20 quiet readings or a minute of them; until then it gets the
        benefit of the doubt."""
        if not self.owned:
            return True
        if self.active or self._quiet_readings < QUIET_LEAST:
            return False
        newest_s = self.window[-1].t_s if self.window else self._quiet_since_s
        return self._quiet_readings >= QUIET_READINGS or newest_s - self._quiet_since_s >= QUIET_S

    @property
    def limit_bytes(self) -> float | None:
        """What this process may hold, context included. A MIG slice without a limit has none: its parent's is not its own."""
        if self.info.memory_limit_bytes is not None:
            return self.info.memory_limit_bytes
        return None if self.info.mig else self.info.memory_total_bytes

    # --- what it said

    def on_info(self, info: Gpu) -> None:
        known = self.info
        self.info = Gpu(
            **{name: new if (new := getattr(info, name)) is not None else getattr(known, name) for name in info.__struct_fields__}
        )

    def on_reading(self, event: Reading, *, training: bool) -> None:
        t_s = event.t_s
        self.readings += event.count or 1
        self.last_reading_s = t_s
        if event.errors:
            self._errors(event.errors, t_s)
        if self._answers(event):
            self.last_answer_s = t_s
        used = event.memory_used_bytes
        self.window.append(
            Sample(
                t_s,
                event.utilization_ratio,
                event.power_w,
                used,
                event.sm_clock_hz,
                event.temperature_c,
                event.sm_active_ratio,
                event.pcie_gen,
                event.pcie_width,
                tuple(event.throttle) if event.throttle is not None else None,
            )
        )
        if used is not None and used > (self.peak_used_bytes or 0.0):
            self.peak_used_bytes = used
        if event.energy_j is not None and self.energy_first_j is None:
            self.energy_first_j = event.energy_j
        if training and self.load.learning:
            self.load.on_reading(event)
        self._activity(event, training)

    def on_allocator(self, event: Allocator) -> None:
        self._allocators.append(event)
        if len(self._allocators) >= MERGE_READINGS:
            self._merge_allocator()
        if self.allocator_first is None:
            self.allocator_first = event
        allocated = event.peak_allocated_bytes or event.allocated_bytes
        if allocated is not None and allocated > (self.peak_allocated_bytes or 0.0):
            self.peak_allocated_bytes = allocated
        reserved = event.peak_reserved_bytes or event.reserved_bytes
        if reserved is not None and reserved > (self.peak_reserved_bytes or 0.0):
            self.peak_reserved_bytes = reserved
        if event.allocated_bytes:
            self.active = True

    @property
    def allocator(self) -> Allocator | None:
        """The newest allocator line, its gaps filled from those before it."""
        if self._allocators:
            self._merge_allocator()
        return self._allocator

    def utilization_mean(self, since_s: float, *, minimum: int = 10) -> float | None:
        """Mean utilization of the readings after `since_s`, or None of fewer than `minimum`."""
        values = [s.utilization_ratio for s in self.since(since_s) if s.utilization_ratio is not None]
        return sum(values) / len(values) if len(values) >= minimum else None

    def utilization_last_minute(self, *, minimum: int = 10) -> float | None:
        """Mean utilization of the last minute's readings, or None of fewer than `minimum`. O(1)."""
        return self._minute_sum / len(self._minute) if len(self._minute) >= minimum else None

    def since(self, since_s: float) -> list[Sample]:
        """The window's readings after `since_s`, oldest first."""
        out = []
        for sample in reversed(self.window):
            if sample.t_s < since_s:
                break
            out.append(sample)
        out.reverse()
        return out

    # --- how

    def _errors(self, errors: dict[str, int], t_s: float) -> None:
        for query, code in errors.items():
            self.errors_total[query] = self.errors_total.get(query, 0) + 1
            if query not in self.errors or self.errors[query] != code:
                self.error_since_s.setdefault(query, t_s)
            self.errors[query] = code
            if code in LOST_CODES and self.lost_since_s is None:
                self.lost_since_s, self.lost_code = t_s, code

    @property
    def last(self) -> Reading | None:
        """The newest answer of each query, merged from partial readings; what failed in the newest one is unknown."""
        if self._newer:
            self._merge()
        return self._last

    @property
    def answered(self) -> set[str]:
        """Queries that have ever been answered."""
        self._remember_answers()
        return self._answered

    def _merge(self) -> None:
        """Fill the newest reading's gaps from those before it. Put off until somebody looks: most readings are complete."""
        newest = self._newer.pop()
        older = self._newer if self._last is None else [self._last, *self._newer]
        older.reverse()
        self._newer = []
        fields = _ANSWER_FIELDS
        if newest.errors:
            self._remember_answers()
            fields = tuple(field for query, field in _ANSWERS if query not in newest.errors)
        self._last = _filled(newest, older, fields)

    def _merge_allocator(self) -> None:
        newest = self._allocators.pop()
        older = self._allocators if self._allocator is None else [self._allocator, *self._allocators]
        older.reverse()
        self._allocators = []
        self._allocator = _filled(newest, older, _ALLOCATOR_FIELDS)

    def _remember_answers(self) -> None:
        """Answers of before: the newest reading keeps them until their query fails."""
        for reading in (self._last, *self._newer):
            if reading is not None:
                self._answered.update(query for query, field in _ANSWERS if getattr(reading, field) is not None)

    def _answers(self, event: Reading) -> bool:
        """Take a reading in; whether it answers anything."""
        self._newer.append(event)
        if len(self._newer) >= MERGE_READINGS or event.errors:
            self._merge()
        if not self.errors and not event.errors and self.lost_since_s is None:
            return event.utilization_ratio is not None or event.memory_used_bytes is not None or _any_answer(event)
        return self._recovers(event)

    def _recovers(self, event: Reading) -> bool:
        """The same for a device with errors: what is answered again is no error any more."""
        any_answer = False
        for query, field in _ANSWERS:
            if getattr(event, field) is None:
                continue
            any_answer = True
            if query in self.errors and (event.errors is None or query not in event.errors):
                del self.errors[query]
                self.error_since_s.pop(query, None)
        if any_answer and self.lost_since_s is not None and not event.errors:
            self.lost_since_s = self.lost_code = None  # it came back
        return any_answer

    def _activity(self, event: Reading, training: bool) -> None:
        utilization = event.utilization_ratio
        if utilization is None:
            self._activity_by_power(event, training)
            return
        self._tells_utilization = True
        self._minute.append((event.t_s, utilization))
        self._minute_sum += utilization
        while self._minute[0][0] < event.t_s - 60.0:
            self._minute_sum -= self._minute.popleft()[1]
        if utilization >= IDLE_UTILIZATION:
            self.idle_since_s = None
            if training:
                self.active = True
        elif self.idle_since_s is None:
            self.idle_since_s = event.t_s
        if training and not self.active:
            self._quiet(event.t_s)

    def _activity_by_power(self, event: Reading, training: bool) -> None:
        """Of a device that never tells its utilization (WSL, some drivers) power says whether it rests."""
        power_w = event.power_w
        if self._tells_utilization or power_w is None or self.info.mig:
            if not self._tells_utilization and training and event.memory_used_bytes is None:
                self.active = True  # it cannot say: no case against it
            self.idle_since_s = None
            return
        if not training:
            self._rest.learn(power_w, self.info.power_limit_w or self.info.power_default_limit_w)
        elif not self.active:
            if self._rest.quiet(power_w):
                self._quiet(event.t_s)
            else:
                self.active = True
        self._rest.on_power(event.t_s, power_w, self.load.power_w)
        self.idle_since_s = self._rest.since_s

    def _quiet(self, t_s: float) -> None:
        if not self._quiet_readings:
            self._quiet_since_s = t_s
        self._quiet_readings += 1


_QUERY_FIELDS = (
    ("utilization", "utilization_ratio"),
    ("memory", "memory_used_bytes"),
    ("power", "power_w"),
    ("temperature", "temperature_c"),
    ("clock", "sm_clock_hz"),
    ("energy", "energy_j"),
    ("pcie", "pcie_gen"),
    ("sm_active", "sm_active_ratio"),
    ("processes", "processes"),
    ("ecc", "ecc_uncorrected"),
)


#: Every field of a reading with the query that answers it.
_ANSWERS = (
    *_QUERY_FIELDS,
    ("utilization", "memory_utilization_ratio"),
    ("memory", "memory_free_bytes"),
    ("memory", "memory_reserved_bytes"),
    ("memory", "context_bytes"),
    ("sm_active", "tensor_active_ratio"),
    ("pcie", "pcie_width"),
    ("clock", "throttle"),
    ("ecc", "ecc_corrected"),
)


_ANSWER_FIELDS = tuple(field for _, field in _ANSWERS)


def _any_answer(event: Reading) -> bool:
    return any(getattr(event, field) is not None for _, field in _ANSWERS)


def _filled(newest: _F, older: list[_F], fields: tuple[str, ...]) -> _F:
    """`newest` with the gaps among `fields` filled from the newest of `older` (newest first) that tells."""
    filled = newest
    for field in fields:
        if getattr(newest, field) is not None:
            continue
        for fact in older:
            value = getattr(fact, field)
            if value is not None:
                if filled is newest:
                    filled = copy.copy(newest)
                setattr(filled, field, value)
                break
    return filled


_ALLOCATOR_FIELDS = tuple(name for name in Allocator.__struct_fields__ if name.endswith(("_bytes", "_retries", "ooms")))
