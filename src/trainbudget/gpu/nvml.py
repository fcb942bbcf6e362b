"""NVML as Python functions in SI units: the only file that imports pynvml, and the only one that converts its units.

Each query returns the fields of a `Reading` that it knows and raises `QueryError` with the NVML code for anything else
that happens, garbage from the driver included. What to ask when, and what to make of a refusal, is `nvml_backend`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import pynvml

from trainbudget.gpu.protocol import (
    FUNCTION_NOT_FOUND,
    NO_PERMISSION,
    NOT_SUPPORTED,
    UNINITIALIZED,
    UNKNOWN,
    GpuIdentity,
)

Fields = dict[str, Any]

#: nvidia-smi's names of the bits in nvmlClocksEventReasons (nvml.h).
THROTTLE_NAMES = {
    0x001: "gpu_idle",
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clocks_setting",
}

#: Above this a power reading is a driver glitch (0xFFFFFFFF mW is the usual one): no device draws 100 kW.
IMPLAUSIBLE_POWER_W = 100_000.0
#: Silicon shuts down far below; higher values are glitches.
IMPLAUSIBLE_TEMPERATURE_C = 150.0


class QueryError(Exception):
    """A query failed; `code` is NVML's, 999 where the failure was not NVML's own."""

    def __init__(self, code: int) -> None:
        super().__init__(f"NVML error {code}")
        self.code = code


@dataclass(slots=True, kw_only=True)
class Device:
    """A device with its NVML handles, which stay valid as long as the library is initialised."""

    identity: GpuIdentity
    handle: Any = None
    parent_handle: Any = None  # of a MIG slice: the card, which GPM asks
    handle_error: int | None = None
    gpm_sample: Any = None  # the previous one: GPM answers for the time between two samples


def call(function: Callable[..., Any], *args: Any) -> Any:
    """What an NVML function returns.

    Raises:
        QueryError: it failed, in whatever way: training must not see the difference.
    """
    try:
        return function(*args)
    except pynvml.NVMLError as err:
        raise QueryError(int(getattr(err, "value", UNKNOWN))) from err
    except Exception as err:  # a binding that does not fit the library raises anything
        raise QueryError(UNKNOWN) from err


def optional(function: Callable[..., Any], *args: Any) -> Any:
    """What an NVML function returns, or None where it fails."""
    try:
        return call(function, *args)
    except QueryError:
        return None


def start() -> None:
    call(pynvml.nvmlInit)


def stop() -> None:
    optional(pynvml.nvmlShutdown)


def initialised() -> bool:
    """Whether NVML is up in this process: other users of pynvml share the initialisation and may end it."""
    try:
        call(pynvml.nvmlDeviceGetCount)
    except QueryError as err:
        return err.code != UNINITIALIZED
    return True


def error_text(code: int) -> str:
    return str(optional(pynvml.nvmlErrorString, code) or pynvml.NVMLError(code))


def driver_version() -> str | None:
    version: str | None = optional(pynvml.nvmlSystemGetDriverVersion)
    return version


def devices() -> Iterator[Device]:
    """Every card in PCI bus order, each followed by its MIG slices. Cards that a container hides (code 4) are left out."""
    index = 0
    for ordinal in range(call(pynvml.nvmlDeviceGetCount)):
        try:
            handle = call(pynvml.nvmlDeviceGetHandleByIndex, ordinal)
        except QueryError as err:
            if err.code == NO_PERMISSION:
                continue
            yield Device(identity=GpuIdentity(index=index, ordinal=ordinal), handle_error=err.code)
            index += 1
            continue
        uuid = optional(pynvml.nvmlDeviceGetUUID, handle)
        mode = optional(pynvml.nvmlDeviceGetMigMode, handle)
        split = bool(mode and mode[0])
        name = optional(pynvml.nvmlDeviceGetName, handle)
        kind: Literal["gpu", "mig_parent"] = "mig_parent" if split else "gpu"
        yield Device(identity=GpuIdentity(index=index, ordinal=ordinal, uuid=uuid, name=name, kind=kind), handle=handle)
        index += 1
        for part in _slices(handle) if split else ():
            yield Device(identity=_slice_identity(index, ordinal, part, uuid), handle=part, parent_handle=handle)
            index += 1


def _slices(card: Any) -> Iterator[Any]:
    for number in range(optional(pynvml.nvmlDeviceGetMaxMigDeviceCount, card) or 0):
        part = optional(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, card, number)
        if part is not None:  # instance numbers have holes
            yield part


def _slice_identity(index: int, ordinal: int, part: Any, parent_uuid: str | None) -> GpuIdentity:
    return GpuIdentity(
        index=index,
        ordinal=ordinal,
        uuid=optional(pynvml.nvmlDeviceGetUUID, part),
        name=optional(pynvml.nvmlDeviceGetName, part),
        kind="mig",
        parent_uuid=parent_uuid,
        gpu_instance=optional(pynvml.nvmlDeviceGetGpuInstanceId, part),
        compute_instance=optional(pynvml.nvmlDeviceGetComputeInstanceId, part),
    )


def handle_of(identity: GpuIdentity) -> Any:
    """A fresh handle, by UUID where it is known: an index may mean another card after a device fell off the bus."""
    if identity.uuid:
        return call(pynvml.nvmlDeviceGetHandleByUUID, identity.uuid)
    return call(pynvml.nvmlDeviceGetHandleByIndex, identity.ordinal)


def capability(handle: Any) -> Fields:
    """What does not change: power limits, the PCIe maximum, the compute capability."""
    enforced = optional(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    default = optional(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, handle)
    cuda = optional(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    return {
        "power_limit_w": None if enforced is None else enforced / 1e3,
        "power_default_limit_w": None if default is None else default / 1e3,
        "pcie_gen_max": optional(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
        "pcie_width_max": optional(pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
        "compute_capability": None if cuda is None else f"{cuda[0]}.{cuda[1]}",
    }


def memory_total_bytes(handle: Any) -> float:
    return float(call(pynvml.nvmlDeviceGetMemoryInfo, handle).total)


def memory_v2(device: Device) -> Fields:
    """Memory with the driver's own part split off (drivers since R510)."""
    answer = call(pynvml.nvmlDeviceGetMemoryInfo, device.handle, pynvml.nvmlMemory_v2)
    return {
        "memory_used_bytes": float(answer.used),
        "memory_free_bytes": float(answer.free),
        "memory_reserved_bytes": float(answer.reserved),
    }


def memory(device: Device) -> Fields:
    """Memory as older drivers tell it: `used` includes the driver's own part, whose size stays unknown."""
    answer = call(pynvml.nvmlDeviceGetMemoryInfo, device.handle)
    return {"memory_used_bytes": float(answer.used), "memory_free_bytes": float(answer.free)}


def utilization(device: Device) -> Fields:
    answer = call(pynvml.nvmlDeviceGetUtilizationRates, device.handle)
    return {"utilization_ratio": _ratio(answer.gpu), "memory_utilization_ratio": _ratio(answer.memory)}


def power(device: Device) -> Fields:
    return {"power_w": _below(IMPLAUSIBLE_POWER_W, call(pynvml.nvmlDeviceGetPowerUsage, device.handle) / 1e3)}


def temperature(device: Device) -> Fields:
    answer = call(pynvml.nvmlDeviceGetTemperature, device.handle, pynvml.NVML_TEMPERATURE_GPU)
    return {"temperature_c": _below(IMPLAUSIBLE_TEMPERATURE_C, float(answer))}


def clock(device: Device) -> Fields:
    answer = call(pynvml.nvmlDeviceGetClockInfo, device.handle, pynvml.NVML_CLOCK_SM)
    return {"sm_clock_hz": answer * 1e6}


def throttle(device: Device) -> Fields:
    try:
        bits = call(pynvml.nvmlDeviceGetCurrentClocksEventReasons, device.handle)
    except QueryError as err:
        if err.code != FUNCTION_NOT_FOUND:
            raise
        bits = call(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, device.handle)  # its name before R535
    return {"throttle": [name for bit, name in THROTTLE_NAMES.items() if bits & bit]}


def pcie(device: Device) -> Fields:
    return {
        "pcie_gen": int(call(pynvml.nvmlDeviceGetCurrPcieLinkGeneration, device.handle)),
        "pcie_width": int(call(pynvml.nvmlDeviceGetCurrPcieLinkWidth, device.handle)),
    }


def energy(device: Device) -> Fields:
    return {"energy_j": call(pynvml.nvmlDeviceGetTotalEnergyConsumption, device.handle) / 1e3}


def ecc(device: Device) -> Fields:
    """ECC errors since the driver was loaded."""
    corrected, uncorrected = pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    volatile = pynvml.NVML_VOLATILE_ECC
    return {
        "ecc_corrected": float(call(pynvml.nvmlDeviceGetTotalEccErrors, device.handle, corrected, volatile)),
        "ecc_uncorrected": float(call(pynvml.nvmlDeviceGetTotalEccErrors, device.handle, uncorrected, volatile)),
    }


def counters(device: Device) -> tuple[Fields, dict[str, int]]:
    """Energy and ECC errors in one driver call instead of three, with the code of each query that was refused."""
    asked = (
        pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION,
        pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL,
        pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL,
    )
    answers = {int(answer.fieldId): answer for answer in call(pynvml.nvmlDeviceGetFieldValues, device.handle, asked)}
    known: Fields = {}
    errors: dict[str, int] = {}
    names = (("energy", "energy_j", 1e3), ("ecc", "ecc_corrected", 1.0), ("ecc", "ecc_uncorrected", 1.0))
    for field_id, (query, name, per_unit) in zip(asked, names, strict=True):
        answer = answers.get(field_id)
        if answer is None or answer.nvmlReturn != 0:
            errors[query] = UNKNOWN if answer is None else int(answer.nvmlReturn)
        else:
            known[name] = float(_field_number(answer)) / per_unit
    return known, errors


def _field_number(answer: Any) -> float:
    members = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal"}  # nvmlValueType_t
    member = members.get(int(answer.valueType))
    if member is None:
        raise QueryError(UNKNOWN)
    return float(getattr(answer.value, member))


def process_rows(device: Device) -> list[tuple[int, float | None]]:
    """Pairs of process id and bytes held, as the driver counts; bytes are None where it does not tell (WDDM, MIG)."""
    older = getattr(pynvml, "nvmlDeviceGetComputeRunningProcesses_v2", None)  # not in every version of pynvml
    rows = list(_rows(pynvml.nvmlDeviceGetComputeRunningProcesses_v3, older, device.handle))
    with suppress(QueryError):  # what draws is a small part; what computes is known
        rows += _rows(pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3, None, device.handle)
    return [(int(row.pid), None if row.usedGpuMemory is None else float(row.usedGpuMemory)) for row in rows]


def _rows(newest: Callable[..., Any], older: Callable[..., Any] | None, handle: Any) -> Any:
    """What a list query answers, by its older form where the driver has no other.

    The unversioned names are no use: they turn the code of a missing function into an exception without one.
    """
    try:
        return call(newest, handle)
    except QueryError as err:
        if err.code != FUNCTION_NOT_FOUND or older is None:
            raise
        return call(older, handle)


def sm_active(device: Device) -> Fields:
    """Share of SMs and of tensor cores at work since the last call (GPM: Hopper and newer); the first call knows nothing."""
    card = device.handle if device.parent_handle is None else device.parent_handle
    if not call(pynvml.nvmlGpmQueryDeviceSupport, card).isSupportedDevice:
        raise QueryError(NOT_SUPPORTED)
    sample = call(pynvml.nvmlGpmSampleAlloc)
    try:
        if device.parent_handle is None:
            call(pynvml.nvmlGpmSampleGet, card, sample)
        else:
            call(pynvml.nvmlGpmMigSampleGet, card, device.identity.gpu_instance, sample)
    except QueryError:
        optional(pynvml.nvmlGpmSampleFree, sample)
        raise
    previous, device.gpm_sample = device.gpm_sample, sample
    if previous is None:
        return {}
    try:
        return _between(previous, sample)
    finally:
        optional(pynvml.nvmlGpmSampleFree, previous)


def _between(first: Any, second: Any) -> Fields:
    request = pynvml.c_nvmlGpmMetricsGet_t()
    request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    request.sample1, request.sample2 = first, second
    names = {pynvml.NVML_GPM_METRIC_SM_UTIL: "sm_active_ratio", pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL: "tensor_active_ratio"}
    request.numMetrics = len(names)
    for position, metric in enumerate(names):
        request.metrics[position].metricId = metric
    answer = call(pynvml.nvmlGpmMetricsGet, request)
    values = {name: answer.metrics[position] for position, name in enumerate(names.values())}
    return {name: _ratio(metric.value) for name, metric in values.items() if metric.nvmlReturn == 0}


def free_gpm_sample(device: Device) -> None:
    if device.gpm_sample is not None:
        optional(pynvml.nvmlGpmSampleFree, device.gpm_sample)
        device.gpm_sample = None


class XidEvents:
    """Xid errors as they happen, where the driver tells them (not in WSL and not in most containers)."""

    def __init__(self, devices: list[Device]) -> None:
        self._set = optional(pynvml.nvmlEventSetCreate)
        self._registered = 0
        for device in devices if self._set is not None else ():
            if device.handle is None:
                continue
            kind = pynvml.nvmlEventTypeXidCriticalError
            try:
                call(pynvml.nvmlDeviceRegisterEvents, device.handle, kind, self._set)
                self._registered += 1
            except QueryError:
                continue

    def next(self) -> tuple[str | None, int] | None:
        """UUID of the device and number of the Xid, or None when nothing waits; never blocks."""
        if self._set is None or not self._registered:
            return None
        event = optional(pynvml.nvmlEventSetWait_v2, self._set, 0)
        if getattr(event, "eventType", None) != pynvml.nvmlEventTypeXidCriticalError:
            return None
        return optional(pynvml.nvmlDeviceGetUUID, event.device), int(event.eventData)

    def close(self) -> None:
        if self._set is not None:
            optional(pynvml.nvmlEventSetFree, self._set)
            self._set = None


def _ratio(percent: float) -> float | None:
    return percent / 100 if 0 <= percent <= 100 else None


def _below(limit: float, value: float) -> float | None:
    return value if 0 <= value < limit else None
