"""Metrics of one GPU; every series has the label `gpu`, the logical index. What a device does not answer has no series."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from trainbudget.catalog.labels import clean
from trainbudget.catalog.spec import Kind, MetricSpec, Read, Sample, Snapshot, Unit
from trainbudget.engine.report import GpuReport
from trainbudget.events import Allocator, Reading

G, C = Kind.GAUGE, Kind.COUNTER

#: Throttle reasons that cost speed; the others say only that the GPU rests or that somebody set a clock.
HARMFUL_THROTTLES = ("sw_power_cap", "hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
#: Findings that say when a GPU will be out of memory.
OOM_CODES = ("oom_forecast", "oom_predicted", "oom_next_phase")


def _gpu(value: Callable[[GpuReport], float | None]) -> Read:
    return lambda s: [((str(g.info.gpu),), value(g)) for g in s.report.gpus]


def _reading(value: Callable[[Reading], float | None]) -> Read:
    return lambda s: [((str(g.info.gpu),), value(g.reading)) for g in s.report.gpus if g.reading is not None]


def _allocator(values: Callable[[GpuReport, Allocator], Iterable[tuple[str, float | None]]]) -> Read:
    return lambda s: [
        ((str(g.info.gpu), kind), value)
        for g in s.report.gpus
        if g.allocator is not None
        for kind, value in values(g, g.allocator)
    ]


def _allocator_one(value: Callable[[Allocator], float | None]) -> Read:
    return lambda s: [((str(g.info.gpu),), value(g.allocator)) for g in s.report.gpus if g.allocator is not None]


def _info(snapshot: Snapshot) -> Iterable[Sample]:
    for gpu in snapshot.report.gpus:
        info = gpu.info
        mig = "" if info.mig is None else str(info.mig).lower()
        values = (info.gpu, info.uuid or "", info.name or "", info.compute_capability or "", mig, str(gpu.owned).lower())
        yield tuple(clean(v) for v in values), 1.0


def _throttled(snapshot: Snapshot) -> Iterable[Sample]:
    for gpu in snapshot.report.gpus:
        if gpu.reading is None or gpu.reading.throttle is None:
            continue
        for reason in HARMFUL_THROTTLES:
            yield (str(gpu.info.gpu), reason), float(reason in gpu.reading.throttle)


def _ecc(snapshot: Snapshot) -> Iterable[Sample]:
    for gpu in snapshot.report.gpus:
        if gpu.reading is not None:
            yield (str(gpu.info.gpu), "corrected"), gpu.reading.ecc_corrected
            yield (str(gpu.info.gpu), "uncorrected"), gpu.reading.ecc_uncorrected


def _process_memory(snapshot: Snapshot) -> Iterable[Sample]:
    """Known only where every process says whose it is and what it holds."""
    for gpu in snapshot.report.gpus:
        processes = gpu.reading.processes if gpu.reading is not None else None
        if processes is None or any(p.own is None or p.memory_bytes is None for p in processes):
            continue
        for kind, own in (("own", True), ("other", False)):
            yield (str(gpu.info.gpu), kind), sum(p.memory_bytes or 0.0 for p in processes if p.own is own)


def _processes(snapshot: Snapshot) -> Iterable[Sample]:
    for gpu in snapshot.report.gpus:
        processes = gpu.reading.processes if gpu.reading is not None else None
        if processes is None or any(p.own is None for p in processes):
            continue
        for kind, own in (("own", True), ("other", False)):
            yield (str(gpu.info.gpu), kind), float(sum(p.own is own for p in processes))


def _pcie(snapshot: Snapshot) -> Iterable[Sample]:
    """Bandwidth of the link now over its best: each generation doubles it, lanes are proportional."""
    for gpu in snapshot.report.gpus:
        now, best = gpu.reading, gpu.info
        if now is None or not (now.pcie_gen and now.pcie_width and best.pcie_gen_max and best.pcie_width_max):
            continue
        yield (str(best.gpu),), 2.0 ** (now.pcie_gen - best.pcie_gen_max) * now.pcie_width / best.pcie_width_max


def _oom_in(snapshot: Snapshot) -> Iterable[Sample]:
    report = snapshot.report
    soonest: dict[int, float] = {}
    for finding in report.active:
        forecast = finding.forecast_latest or finding.forecast
        if finding.code not in OOM_CODES or forecast is None or forecast.at_s is None:
            continue
        gpu = finding.gpu if finding.gpu is not None else next((g.info.gpu for g in report.gpus if g.owned), 0)
        left = max(0.0, forecast.at_s - report.t_s)
        soonest[gpu] = min(left, soonest.get(gpu, left))
    return [((str(gpu),), left) for gpu, left in sorted(soonest.items())]


def _allocator_kinds(gpu: GpuReport, a: Allocator) -> Iterable[tuple[str, float | None]]:
    return (
        ("allocated", a.allocated_bytes),
        ("reserved", a.reserved_bytes),
        ("inactive_split", a.inactive_split_bytes),
        ("peak_allocated", gpu.peak_allocated_bytes),
    )


def _metric(stem: str, unit: Unit, text: str, read: Read, *, kind: Kind = G, labels: tuple[str, ...] = ()) -> MetricSpec:
    return MetricSpec(stem=stem, kind=kind, unit=unit, help=text, labels=("gpu", *labels), read=read)


GPU_INFO = MetricSpec(
    stem="gpu_info",
    kind=G,
    unit=Unit.INFO,
    help="Always 1: what the device is. `gpu` is the logical index, `uuid` tells devices apart.",
    labels=("gpu", "uuid", "name", "compute_capability", "mig", "owned"),
    read=_info,
)
UTILIZATION = _metric(
    "gpu_utilization_ratio",
    Unit.RATIO,
    "Share of the last second in which any kernel ran; says nothing of how many of the GPU's parts it used.",
    _reading(lambda r: r.utilization_ratio),
)
MEMORY_USED = _metric(
    "gpu_memory_used_bytes",
    Unit.BYTES,
    "Memory in use on the device by everybody, the driver's reserved part left out where it is known.",
    _reading(lambda r: r.memory_used_bytes),
)
MEMORY_TOTAL = _metric("gpu_memory_total_bytes", Unit.BYTES, "Memory of the device.", _gpu(lambda g: g.info.memory_total_bytes))
MEMORY_LIMIT = _metric(
    "gpu_memory_limit_bytes", Unit.BYTES, "Memory this process may hold, its context included.", _gpu(lambda g: g.limit_bytes)
)
MEMORY_RESERVED = _metric(
    "gpu_memory_reserved_bytes", Unit.BYTES, "Memory the driver keeps for itself.", _reading(lambda r: r.memory_reserved_bytes)
)
HEADROOM = _metric(
    "memory_headroom_bytes", Unit.BYTES, "Limit minus the highest use seen so far.", _gpu(lambda g: g.headroom_bytes)
)
PEAK = _metric(
    "memory_peak_bytes",
    Unit.BYTES,
    "Highest memory use of the device seen so far.",
    _gpu(lambda g: g.peak_used_bytes if g.peak_used_bytes is not None else g.peak_reserved_bytes),
)
OOM_FORECAST = _metric("oom_forecast_seconds", Unit.SECONDS, "Seconds until the GPU is expected to be out of memory.", _oom_in)
ALLOCATOR = _metric(
    "allocator_bytes",
    Unit.BYTES,
    "torch's caching allocator: allocated, reserved, inactive_split, and the peak_allocated so far.",
    _allocator(_allocator_kinds),
    labels=("kind",),
)
ALLOCATOR_RETRIES = _metric(
    "allocator_retries_total",
    Unit.COUNT,
    "Times the allocator had to free its cache and ask again: each stops the GPU.",
    _allocator_one(lambda a: a.alloc_retries),
    kind=C,
)
ALLOCATOR_OOMS = _metric(
    "allocator_ooms_total", Unit.COUNT, "Out-of-memory errors the allocator threw.", _allocator_one(lambda a: a.ooms), kind=C
)
POWER = _metric("gpu_power_watts", Unit.WATTS, "Power draw.", _reading(lambda r: r.power_w))
POWER_LIMIT = _metric("gpu_power_limit_watts", Unit.WATTS, "Power limit in force.", _gpu(lambda g: g.info.power_limit_w))
TEMPERATURE = _metric("gpu_temperature_celsius", Unit.CELSIUS, "Core temperature.", _reading(lambda r: r.temperature_c))
SM_CLOCK = _metric("gpu_sm_clock_hertz", Unit.HERTZ, "Clock of the multiprocessors.", _reading(lambda r: r.sm_clock_hz))
SM_ACTIVE = _metric(
    "gpu_sm_active_ratio",
    Unit.RATIO,
    "Share of multiprocessors with work, over time: busy and low is a GPU that looks used and is not.",
    _reading(lambda r: r.sm_active_ratio),
)
TENSOR_ACTIVE = _metric(
    "gpu_tensor_active_ratio", Unit.RATIO, "Share of time the tensor cores worked.", _reading(lambda r: r.tensor_active_ratio)
)
MEMORY_ACTIVE = _metric(
    "gpu_memory_utilization_ratio",
    Unit.RATIO,
    "Share of the last second in which memory was read or written.",
    _reading(lambda r: r.memory_utilization_ratio),
)
ENERGY = _metric("gpu_energy_joules_total", Unit.JOULES, "Energy the device has used.", _reading(lambda r: r.energy_j), kind=C)
PCIE = _metric("gpu_pcie_link_ratio", Unit.RATIO, "Bandwidth of the PCIe link now over its best; falls at rest.", _pcie)
THROTTLED = _metric(
    "gpu_throttled", Unit.FLAG, "1 while the driver names this reason for lower clocks.", _throttled, labels=("reason",)
)
ECC = _metric("gpu_ecc_errors_total", Unit.COUNT, "ECC errors the device has counted.", _ecc, kind=C, labels=("kind",))
PROCESS_MEMORY = _metric(
    "gpu_processes_memory_bytes", Unit.BYTES, "Memory held by `own` and `other` processes.", _process_memory, labels=("kind",)
)
PROCESSES = _metric("gpu_processes", Unit.COUNT, "Processes on the device: `own` and `other`.", _processes, labels=("kind",))
LOST = _metric("gpu_lost", Unit.FLAG, "1 while the driver says that the device is gone.", _gpu(lambda g: float(g.lost)))
SAMPLE_AGE = MetricSpec(
    stem="sample_age_seconds",
    kind=G,
    unit=Unit.SECONDS,
    help="Seconds since the device last answered, as of the scrape.",
    labels=("gpu",),
    read=lambda s: [((str(g.info.gpu),), s.age_s(g.last_reading_s)) for g in s.report.gpus],
    at_scrape=True,
)

GPU_METRICS = (
    GPU_INFO,
    UTILIZATION,
    MEMORY_USED,
    MEMORY_TOTAL,
    MEMORY_LIMIT,
    HEADROOM,
    PEAK,
    OOM_FORECAST,
    LOST,
    POWER,
    TEMPERATURE,
    ALLOCATOR,
    ALLOCATOR_RETRIES,
    ALLOCATOR_OOMS,
    POWER_LIMIT,
    SM_CLOCK,
    SM_ACTIVE,
    TENSOR_ACTIVE,
    MEMORY_ACTIVE,
    ENERGY,
    THROTTLED,
    PCIE,
    ECC,
    PROCESS_MEMORY,
    PROCESSES,
    MEMORY_RESERVED,
)
