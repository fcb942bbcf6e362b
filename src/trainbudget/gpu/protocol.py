"""What a source of device readings is: one protocol, the query names and the error codes that all sources share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from trainbudget.events import Allocator, AnyEvent, Event, Gpu, Reading

BackendName = Literal["nvml", "mock", "recorded", "amd", "tpu"]

#: Keys of `Reading.errors`, fixed by the trace format.
QUERIES = (
    "init",
    "handle",
    "utilization",
    "memory",
    "memory_v2",
    "power",
    "temperature",
    "clock",
    "processes",
    "energy",
    "sm_active",
    "pcie",
    "ecc",
)

# NVML return codes that carry a meaning for us (nvml.h, nvmlReturn_t).
UNINITIALIZED = 1
NOT_SUPPORTED = 3
NO_PERMISSION = 4
DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
OPERATING_SYSTEM = 17
VERSION_MISMATCH = 18
GPU_NOT_FOUND = 28
UNKNOWN = 999

#: The device will never answer this query: it is not asked again.
REFUSED_CODES = frozenset({NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND})
#: The device as a whole is gone; asking it more only risks blocking in the driver.
LOST_CODES = frozenset({GPU_IS_LOST, RESET_REQUIRED, GPU_NOT_FOUND})


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuIdentity:
    """Who a device is, as far as the mapping to the framework's ordinals needs it.

    Attributes:
        index: the backend's own logical index, which is also `Gpu.gpu` and `Reading.gpu`.
        ordinal: position among whole cards in PCI bus order; a MIG slice has its parent's.
        kind: `gpu` (a whole card), `mig_parent` (a card split into slices, unusable as a whole) or `mig` (a slice).
        parent_uuid: of a slice, the card it is part of.
        gpu_instance: of a slice, the GPU instance id (old style names `MIG-GPU-UUID/GI/CI`).
        compute_instance: of a slice, the compute instance id.
    """

    index: int
    ordinal: int
    uuid: str | None = None
    name: str | None = None
    kind: Literal["gpu", "mig_parent", "mig"] = "gpu"
    parent_uuid: str | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    """What the host knows of a process id; `None` = unknown."""

    alive: bool | None = None
    started_before_run: bool | None = None


#: Looks a process id up on this host; must not raise and must be quick, it runs on the sampler thread.
ProcessLookup = Callable[[int], ProcessInfo]


class GpuBackend(Protocol):
    """A source of device readings.

    All methods are called from one thread at a time, usually a sampler thread. Any of them may block for ever when a
    driver is stuck: the caller runs them where that costs one thread and nothing else.
    """

    name: BackendName
    driver_version: str | None

    @property
    def identities(self) -> tuple[GpuIdentity, ...]:
        """The devices of the last `open`, in order of index; empty before."""
        ...

    def open(self) -> tuple[Gpu, ...]:
        """The devices that can be read, in order of index, with `owned` and `visible` left undecided.

        An empty tuple means that the driver works and shows no device. Opening twice gives the same answer.

        Raises:
            GpuUnavailableError: with code `library_not_found`, `driver_mismatch`, `permission`, `cpu_build` or `unknown`.
        """
        ...

    def read(self, gpu: int | str, *, now_s: float) -> Reading:
        """What the device (index or UUID) answers at `now_s`, which becomes its `t_s`: seconds since the run's own zero.

        Never raises for a query that fails: the query's name and its NVML code go to `Reading.errors`. Ratios are 0-1,
        everything else is in SI units. A field that the device refuses is None for ever, and its refusal is reported
        once. A field whose slower rate did not make it due in this call is None too: readers keep the last known one.
        When the device as a whole is lost (codes 15, 16, 28 and, where every query says so, 999), each query that was
        due carries the code.

        Raises:
            LookupError: no such device was ever opened: a mistake of the caller, not of the driver.
        """
        ...

    def close(self) -> None:
        """Let go of the driver. Never raises; may be called more than once."""
        ...


@runtime_checkable
class AllocatorSource(Protocol):
    """A backend that also tells the framework's allocator (the mock, a recording)."""

    def allocator(self, now_s: float) -> tuple[Allocator, ...]:
        """Allocator facts that became known since the last call, oldest first."""
        ...


@runtime_checkable
class EventSource(Protocol):
    """A backend that also tells moments, such as an Xid error of a device."""

    def events(self, now_s: float) -> tuple[Event, ...]:
        """Moments since the last call, oldest first; never waits, never raises."""
        ...


@runtime_checkable
class Observer(Protocol):
    """A backend that follows the training's own events (the mock)."""

    def observe(self, event: AnyEvent) -> None:
        """Take note of a fact; cheap, any thread."""
        ...


@runtime_checkable
class Simulated(Protocol):
    """A backend whose devices no framework knows: it says itself what `map_devices` must be told."""

    @property
    def framework_uuids(self) -> tuple[str, ...]:
        """UUIDs in the order in which a framework would number the devices; empty where that is unknown."""
        ...

    @property
    def used_ordinals(self) -> tuple[int, ...]:
        """Places in `framework_uuids` of the devices that this process trains on."""
        ...


def identity_of(gpu: Gpu) -> GpuIdentity:
    """The identity of a device of which only its `gpu` fact is known: taken for a whole card unless it says MIG."""
    return GpuIdentity(index=gpu.gpu, ordinal=gpu.gpu, uuid=gpu.uuid, name=gpu.name, kind="mig" if gpu.mig else "gpu")
