"""One reading of one NVIDIA device: which queries are due, and what a failure means for the next time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainbudget.gpu.protocol import LOST_CODES, REFUSED_CODES, UNKNOWN

if TYPE_CHECKING:
    from types import ModuleType

    from trainbudget.gpu.nvml import Device

#: Seconds between two askings. Memory, utilization and power are what detectors live on. Clocks and temperature move
#: slowly. Process lists are the dearest call (an order of magnitude above the others) and links hardly ever change.
PERIODS_S = {
    "memory_v2": 1.0,
    "memory": 1.0,
    "utilization": 1.0,
    "power": 1.0,
    "clock": 5.0,
    "throttle": 5.0,
    "temperature": 5.0,
    "counters": 5.0,
    "energy": 5.0,
    "ecc": 5.0,
    "sm_active": 5.0,
    "processes": 10.0,
    "pcie": 10.0,
    "handle": 10.0,
}
#: A sampler's ticks jitter: a query is due this much before its period is over, so that 1 s does not become 2 s.
_JITTER_S = 0.3
#: WSL answers 999 where it means "not supported". A query that never worked and says 999 this often while others answer
#: is taken for refused.
_UNKNOWN_TRIES = 3


@dataclass(slots=True, kw_only=True)
class DeviceState:
    """What is remembered of one device between readings."""

    device: Device
    asked_s: dict[str, float] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    worked: set[str] = field(default_factory=set)
    unknowns: dict[str, int] = field(default_factory=dict)
    lost: bool = False


@dataclass(slots=True, kw_only=True)
class Round:
    """One reading of one device; `errors` fills as queries fail."""

    nvml: ModuleType
    state: DeviceState
    now_s: float
    errors: dict[str, int] = field(default_factory=dict)
    _gone: int | None = None  # the code with which the device as a whole answered

    def ask_all(self, read_processes: Callable[[Device], dict[str, Any]]) -> dict[str, Any]:
        """The fields of every query that is due."""
        nvml = self.nvml
        if self.state.device.handle is None:
            self._gone = self.errors.get("handle") or self.state.device.handle_error or UNKNOWN
            self.errors["handle"] = self._gone
        fields = self._memory()
        fields |= self._ask("utilization", nvml.utilization)
        fields |= self._ask("power", nvml.power)
        fields |= self._ask("clock", nvml.clock)
        # The trace format has no name for it: where the clock answers and this does not, it is just absent.
        fields |= self._ask("throttle", nvml.throttle, reported=False)
        fields |= self._ask("temperature", nvml.temperature)
        fields |= self._counters()
        fields |= self._ask("sm_active", nvml.sm_active)
        fields |= self._ask("processes", read_processes)
        fields |= self._ask("pcie", nvml.pcie)
        if fields:  # a device that is silent as a whole says nothing about single queries
            self._take_unknowns_for_refusals()
        return fields

    def due(self, query: str) -> bool:
        """Whether its period has passed; counts as asked from now on."""
        last_s = self.state.asked_s.get(query)
        if last_s is not None and 0 <= self.now_s - last_s < PERIODS_S[query] - _JITTER_S:
            return False
        self.state.asked_s[query] = self.now_s
        return True

    def _memory(self) -> dict[str, Any]:
        """Memory with the driver's part apart, or as old drivers tell it where the new way never worked.

        Not for a single failure of the new way: `used` would jump by the driver's part and back.
        """
        fields = self._ask("memory_v2", self.nvml.memory_v2)
        if fields or "memory_v2" in self.state.worked:
            return fields
        return self._ask("memory", self.nvml.memory)

    def _counters(self) -> dict[str, Any]:
        """Energy and ECC in one call where the device can, else one by one."""
        state = self.state
        wanted = {"energy", "ecc"} - state.refused
        if not wanted:
            return {}
        if "counters" not in state.refused:
            if not self.due("counters"):
                return {}
            answer, code = self._attempt(self.nvml.counters)
            if code is None:
                fields, codes = answer
                for query in sorted(wanted & codes.keys()):
                    self._note(query, codes[query])
                state.worked |= wanted - codes.keys()
                return dict(fields)
            if code not in REFUSED_CODES:
                for query in sorted(wanted):
                    self._note(query, code)
                return {}
            state.refused.add("counters")
        return self._ask("energy", self.nvml.energy) | self._ask("ecc", self.nvml.ecc)

    def _ask(self, query: str, function: Callable[[Device], dict[str, Any]], *, reported: bool = True) -> dict[str, Any]:
        if query in self.state.refused or not self.due(query):
            return {}
        fields, code = self._attempt(function)
        if code is not None:
            self._note(query, code, reported=reported)
            return {}
        self.state.worked.add(query)
        return dict(fields)

    def _attempt(self, function: Callable[[Device], Any]) -> tuple[Any, int | None]:
        """The answer, or the NVML code of the failure; a device that is gone is not asked."""
        if self._gone is not None:
            return None, self._gone
        try:
            return function(self.state.device), None
        except self.nvml.QueryError as err:
            return None, int(err.code)
        except Exception:  # noqa: BLE001 - a driver's garbage must not reach the sampler
            return None, UNKNOWN

    def _note(self, query: str, code: int, *, reported: bool = True) -> None:
        state = self.state
        if code in LOST_CODES:
            self._gone = code
        if code in REFUSED_CODES:
            state.refused.add(query)
        if code == UNKNOWN and query not in state.worked:
            state.unknowns[query] = state.unknowns.get(query, 0) + 1
        if reported:
            self.errors[query] = code

    def _take_unknowns_for_refusals(self) -> None:
        for query, times in self.state.unknowns.items():
            if times >= _UNKNOWN_TRIES:
                self.state.refused.add(query)
