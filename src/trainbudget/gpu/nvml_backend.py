"""NVIDIA devices through NVML: what is asked how often, and what is made of refusals, losses and a driver that comes back."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

from trainbudget.errors import GpuUnavailableError
from trainbudget.events import Event, Gpu, Reading
from trainbudget.gpu.nvml_round import DeviceState, Round
from trainbudget.gpu.processes import pids_are_the_hosts, processes_of
from trainbudget.gpu.protocol import (
    DRIVER_NOT_LOADED,
    FUNCTION_NOT_FOUND,
    LIBRARY_NOT_FOUND,
    NO_PERMISSION,
    NOT_SUPPORTED,
    OPERATING_SYSTEM,
    REFUSED_CODES,
    UNINITIALIZED,
    UNKNOWN,
    VERSION_MISMATCH,
    BackendName,
    GpuIdentity,
    ProcessLookup,
)

if TYPE_CHECKING:
    from types import ModuleType

    from trainbudget.gpu.nvml import Device

#: A driver that was reloaded needs a new initialisation, which may itself block or fail: not more often than this.
_REINIT_PERIOD_S = 30.0
#: Bound on Xid events taken in one call, so that a flood cannot hold the sampler.
_EVENTS_A_CALL = 16

_OPEN_CODES = {
    LIBRARY_NOT_FOUND: (
        "library_not_found",
        "libnvidia-ml.so.1 is not installed here: no NVIDIA driver, or a container without it",
    ),
    VERSION_MISMATCH: ("driver_mismatch", "the NVIDIA driver was updated while loaded: reload it or restart the machine"),
    FUNCTION_NOT_FOUND: ("driver_mismatch", "the installed NVML library is too old for nvidia-ml-py: update the NVIDIA driver"),
    NO_PERMISSION: ("permission", "no permission to talk to the NVIDIA driver: check /dev/nvidia* and the container's devices"),
    OPERATING_SYSTEM: (
        "permission",
        "the operating system blocks the NVIDIA driver: check /dev/nvidia* and the container's devices",
    ),
    DRIVER_NOT_LOADED: ("unknown", "the NVIDIA driver is installed but not loaded: see dmesg, try modprobe nvidia"),
    UNKNOWN: ("unknown", "NVML says 'unknown error': in a container its devices were probably taken away, restart the container"),
}


class NvmlBackend:
    """NVIDIA devices of this machine. See `GpuBackend` for the contract."""

    name: BackendName = "nvml"

    def __init__(
        self,
        *,
        process_info: ProcessLookup | None = None,
        own_pid: int | None = None,
        pids_trusted: bool | None = None,
    ) -> None:
        """Nothing is loaded and no driver is touched before `open`.

        Args:
            process_info: looks up the processes that share a device; None leaves `alive` and the start unknown.
            own_pid: this process's id.
            pids_trusted: whether the driver's process ids mean the same here; None finds out.
        """
        self.driver_version: str | None = None
        self._process_info = process_info
        self._own_pid = os.getpid() if own_pid is None else own_pid
        self._pids_trusted = bool(pids_are_the_hosts()) if pids_trusted is None else pids_trusted
        self._nvml: ModuleType | None = None
        self._states: list[DeviceState] = []
        self._gpus: tuple[Gpu, ...] = ()
        self._xids: Any = None
        self._reinit_s: float | None = None
        self._reinit_code: int | None = None

    @property
    def identities(self) -> tuple[GpuIdentity, ...]:
        return tuple(state.device.identity for state in self._states)

    def open(self) -> tuple[Gpu, ...]:
        if self._nvml is not None:
            return self._gpus
        try:
            from trainbudget.gpu import nvml
        except ImportError as err:
            raise GpuUnavailableError("library_not_found", "the Python package nvidia-ml-py is not installed") from err
        try:
            nvml.start()
        except nvml.QueryError as err:
            raise _unavailable(nvml, err.code) from err
        try:
            self._states = [DeviceState(device=device) for device in nvml.devices()]
            self.driver_version = nvml.driver_version()
            self._gpus = tuple(_facts(nvml, state) for state in self._states)
            self._xids = nvml.XidEvents([state.device for state in self._states])
        except Exception as err:  # a library that does not fit the binding answers anything
            nvml.stop()
            raise _unavailable(nvml, getattr(err, "code", UNKNOWN)) from err
        self._nvml = nvml
        return self._gpus

    def close(self) -> None:
        nvml, self._nvml = self._nvml, None
        if nvml is None:
            return
        for state in self._states:
            nvml.free_gpm_sample(state.device)
        self._xids.close()
        nvml.stop()

    def reinit(self) -> int | None:
        """Initialise NVML anew and get fresh handles; the NVML code of a failure, else None.

        While any device answers, the old initialisation is given up only after the new one works: after a driver update
        a process that holds the old one goes on reading, while every new one is refused.
        """
        nvml = self._nvml
        if nvml is None:
            return UNINITIALIZED
        held = bool(nvml.initialised())
        if held and all(state.lost for state in self._states):
            for state in self._states:
                nvml.free_gpm_sample(state.device)
            nvml.stop()
            held = False
        try:
            nvml.start()
        except nvml.QueryError as err:
            return int(err.code)
        for state in self._states:
            self._refresh_handle(nvml, state)
        if held:
            nvml.stop()
        else:
            self._xids = nvml.XidEvents([state.device for state in self._states])
        return None

    def _reinit_at(self, now_s: float) -> int | None:
        if self._reinit_s is not None and now_s - self._reinit_s < _REINIT_PERIOD_S:
            return self._reinit_code
        self._reinit_s, self._reinit_code = now_s, self.reinit()
        return self._reinit_code

    def read(self, gpu: int | str, *, now_s: float) -> Reading:
        state = self._state(gpu)
        index = state.device.identity.index
        nvml = self._nvml
        if nvml is None:
            return Reading(t_s=now_s, gpu=index, errors={"init": UNINITIALIZED})
        asked = Round(nvml=nvml, state=state, now_s=now_s)
        if (state.lost or state.device.handle is None) and asked.due("handle"):
            code = self._refresh_handle(nvml, state)
            if code is not None:
                asked.errors["handle"] = code
        fields = asked.ask_all(partial(self._read_processes, nvml))
        errors = asked.errors
        if not fields and set(errors.values()) == {UNINITIALIZED}:
            # Somebody else in this process shut NVML down, or an earlier `reinit` failed.
            errors["init"] = self._reinit_at(now_s) or UNINITIALIZED
        state.lost = bool(errors) and not fields and not REFUSED_CODES.issuperset(errors.values())
        return Reading(t_s=now_s, gpu=index, errors=errors or None, **fields)

    def events(self, now_s: float) -> tuple[Event, ...]:
        """Xid errors since the last call."""
        found: list[Event] = []
        index_of = {state.device.identity.uuid: state.device.identity.index for state in self._states}
        while self._nvml is not None and len(found) < _EVENTS_A_CALL:
            xid = self._xids.next()
            if xid is None:
                break
            uuid, number = xid
            found.append(Event(t_s=now_s, event="xid", detail={"gpu": index_of.get(uuid), "xid": number}))
        return tuple(found)

    def _state(self, gpu: int | str) -> DeviceState:
        for state in self._states:
            if gpu in (state.device.identity.index, state.device.identity.uuid):
                return state
        raise LookupError(f"no device {gpu!r}")

    def _refresh_handle(self, nvml: ModuleType, state: DeviceState) -> int | None:
        try:
            state.device.handle = nvml.handle_of(state.device.identity)
        except nvml.QueryError as err:
            return int(err.code)
        state.device.handle_error = None
        return None

    def _read_processes(self, nvml: ModuleType, device: Device) -> dict[str, Any]:
        facts = processes_of(
            nvml.process_rows(device),
            own_pid=self._own_pid,
            memory_total_bytes=self._gpus[device.identity.index].memory_total_bytes,
            process_info=self._process_info,
            pids_trusted=self._pids_trusted,
        )
        return {"processes": facts}


def _facts(nvml: ModuleType, state: DeviceState) -> Gpu:
    device, identity = state.device, state.device.identity
    if device.handle is None:
        return Gpu(gpu=identity.index, uuid=identity.uuid, name=identity.name)
    total, limit, source = _memory_facts(nvml, device)
    return Gpu(
        gpu=identity.index,
        uuid=identity.uuid,
        name=identity.name,
        memory_total_bytes=total,
        # A split card as a whole is nobody's: a slice is the limit, and forecasting against the card would be wrong.
        memory_limit_bytes=None if identity.kind == "mig_parent" else limit,
        memory_limit_source=None if limit is None or identity.kind == "mig_parent" else source,
        mig=identity.kind != "gpu",
        unified_memory=total is None and _refuses_memory(nvml, device),
        **nvml.capability(device.handle),
    )


def _memory_facts(nvml: ModuleType, device: Device) -> tuple[float | None, float | None, str]:
    """Total bytes, bytes this process may use, and how that is known."""
    try:
        total = nvml.memory_total_bytes(device.handle)
    except nvml.QueryError:
        return None, None, ""
    try:
        reserved = nvml.memory_v2(device)["memory_reserved_bytes"]
    except nvml.QueryError:
        return total, total, "nvml_total"
    return total, total - reserved, "nvml_total_less_reserved"


def _refuses_memory(nvml: ModuleType, device: Device) -> bool | None:
    """True where the device says that it has no memory of its own (GB10, Jetson); None where that is not certain."""
    try:
        nvml.memory(device)
    except nvml.QueryError as err:
        return True if err.code == NOT_SUPPORTED else None
    return False


def _unavailable(nvml: ModuleType, code: int) -> GpuUnavailableError:
    word, text = _OPEN_CODES.get(code, ("unknown", f"NVML cannot be started: {nvml.error_text(code)}"))
    return GpuUnavailableError(word, f"{text} (NVML code {code})")
