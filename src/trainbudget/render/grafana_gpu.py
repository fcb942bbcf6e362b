"""GPU: what each device does, and why it does not do more."""

from __future__ import annotations

from trainbudget.catalog import Unit
from trainbudget.catalog.gpu_metrics import (
    ALLOCATOR,
    ALLOCATOR_RETRIES,
    ECC,
    ENERGY,
    GPU_INFO,
    MEMORY_ACTIVE,
    MEMORY_LIMIT,
    MEMORY_USED,
    PCIE,
    POWER,
    POWER_LIMIT,
    PROCESS_MEMORY,
    SM_ACTIVE,
    SM_CLOCK,
    TEMPERATURE,
    TENSOR_ACTIVE,
    THROTTLED,
    UTILIZATION,
)
from trainbudget.catalog.recording import by
from trainbudget.catalog.run_metrics import RUN_INFO
from trainbudget.render.grafana_dashboard import GPU, dashboard, info_variable
from trainbudget.render.grafana_fields import Json, Override, Query, Steps, colour, line, mappings
from trainbudget.render.grafana_panel import stat, state_timeline, table, timeseries

CHOSEN = {"run": "$run", "rank": "=~$rank", "gpu": "=~$gpu"}
DEVICE = "rank, gpu"
THROTTLE_TEXTS = mappings({0: ("no", "dark-green"), 1: ("throttled", "semi-dark-red")})


def gpu() -> Json:
    variables = (
        info_variable("run", "Run", RUN_INFO, "run"),
        info_variable("rank", "Rank", RUN_INFO, "rank", many=True, run="$run"),
        info_variable("gpu", "GPU", GPU_INFO, "gpu", many=True, run="$run"),
    )
    panels = [*_stats(), *_work(), *_memory(), *_power(), _throttle(), *_health(), _devices()]
    return dashboard(
        GPU, "What each device of a run does, and why it does not do more.", panels, variables, since="now-1h", refresh="10s"
    )


def _of(metric_text: str, how: str = "max") -> str:
    return by(DEVICE, metric_text, how)


def _stats() -> list[Json]:
    return [
        stat(
            "Utilization",
            "Mean over the chosen GPUs: the share of time in which any kernel ran.",
            [Query(expr=f"avg({UTILIZATION.at(**CHOSEN)})")],
            unit=Unit.RATIO,
            decimals=0,
            steps=Steps(base="red", marks=((0.5, "orange"), (0.8, "green"))),
            graph=False,
        ),
        stat(
            "SM active",
            "Mean share of multiprocessors with work.",
            [Query(expr=f"avg({SM_ACTIVE.at(**CHOSEN)})")],
            unit=Unit.RATIO,
            decimals=0,
            empty="not supported",
            steps=Steps(base="red", marks=((0.3, "orange"), (0.6, "green"))),
            graph=False,
        ),
        stat(
            "Memory used",
            "Of the fullest GPU, of what may be held.",
            [Query(expr=f"max({_of(MEMORY_USED.at(**CHOSEN))} / {_of(MEMORY_LIMIT.at(**CHOSEN))})")],
            unit=Unit.RATIO,
            decimals=0,
            steps=Steps(marks=((0.9, "orange"), (0.97, "red"))),
            graph=False,
        ),
        stat(
            "Power",
            "Draw of all chosen GPUs.",
            [Query(expr=f"sum({POWER.at(**CHOSEN)})")],
            unit=Unit.WATTS,
            decimals=0,
            graph=False,
            steps=Steps(base="text"),
        ),
        stat(
            "Hottest",
            "Core temperature of the hottest.",
            [Query(expr=f"max({TEMPERATURE.at(**CHOSEN)})")],
            unit=Unit.CELSIUS,
            decimals=0,
            steps=Steps(marks=((80, "orange"), (88, "red"))),
            graph=False,
        ),
        stat(
            "Throttled now",
            "GPUs for which the driver names a reason that costs speed.",
            [Query(expr=f"sum({_of(THROTTLED.at(**CHOSEN))})")],
            unit=Unit.COUNT,
            empty="not supported",
            graph=False,
            steps=Steps(marks=((1, "red"),)),
        ),
    ]


def _work() -> list[Json]:
    return [
        timeseries(
            "Utilization next to SM activity",
            "Utilization says that some kernel ran; SM and tensor activity say how much of the GPU it used.",
            [
                Query(expr=_of(UTILIZATION.at(**CHOSEN)), legend="utilization {{rank}}/{{gpu}}"),
                Query(expr=_of(SM_ACTIVE.at(**CHOSEN)), legend="SM active {{rank}}/{{gpu}}"),
                Query(expr=_of(TENSOR_ACTIVE.at(**CHOSEN)), legend="tensor active {{rank}}/{{gpu}}"),
            ],
            unit=Unit.RATIO,
            decimals=0,
            high=1.0,
        ),
        timeseries(
            "Memory bandwidth in use",
            "Share of time in which device memory was read or written.",
            [Query(expr=_of(MEMORY_ACTIVE.at(**CHOSEN)), legend="{{rank}}/{{gpu}}")],
            unit=Unit.RATIO,
            decimals=0,
            high=1.0,
        ),
    ]


def _memory() -> list[Json]:
    return [
        timeseries(
            "Memory",
            "In use on each device, and what may be held.",
            [
                Query(expr=_of(MEMORY_USED.at(**CHOSEN)), legend="used {{rank}}/{{gpu}}"),
                Query(expr=f"min({MEMORY_LIMIT.at(**CHOSEN)})", legend="limit"),
            ],
            unit=Unit.BYTES,
            size=(8, 9),
            overrides=[line("limit", "dark-red", dashed=True)],
        ),
        timeseries(
            "Allocator",
            "torch's view of the fullest GPU: reserved but not allocated is cache, inactive splits are fragments.",
            [Query(expr=f"max by (kind) ({ALLOCATOR.at(**CHOSEN)})", legend="{{kind}}")],
            unit=Unit.BYTES,
            size=(8, 9),
            empty="no torch allocator",
        ),
        timeseries(
            "Memory by whose process",
            "Held by this run's processes and by others: the others' part is not yours to use.",
            [Query(expr=f"sum by (kind) ({PROCESS_MEMORY.at(**CHOSEN)})", legend="{{kind}}")],
            unit=Unit.BYTES,
            size=(8, 9),
            stacked=True,
            empty="the driver does not tell",
            overrides=[
                Override(name="own", properties={"color": colour("semi-dark-green")}),
                Override(name="other", properties={"color": colour("semi-dark-orange")}),
            ],
        ),
    ]


def _power() -> list[Json]:
    return [
        timeseries(
            "Power",
            "Draw against the limit in force.",
            [
                Query(expr=_of(POWER.at(**CHOSEN)), legend="draw {{rank}}/{{gpu}}"),
                Query(expr=f"max({POWER_LIMIT.at(**CHOSEN)})", legend="limit"),
            ],
            unit=Unit.WATTS,
            size=(8, 8),
            overrides=[line("limit", "dark-red", dashed=True)],
        ),
        timeseries(
            "SM clock",
            "Falls with heat, with the power limit, and at rest.",
            [Query(expr=_of(SM_CLOCK.at(**CHOSEN)), legend="{{rank}}/{{gpu}}")],
            unit=Unit.HERTZ,
            size=(8, 8),
        ),
        timeseries(
            "Temperature",
            "Core temperature; data-centre parts slow down somewhere above 85 °C.",
            [Query(expr=_of(TEMPERATURE.at(**CHOSEN)), legend="{{rank}}/{{gpu}}")],
            unit=Unit.CELSIUS,
            size=(8, 8),
            low=20.0,
            steps=Steps(base="transparent", marks=((85, "red"),)),
        ),
    ]


def _throttle() -> Json:
    return state_timeline(
        "Throttled",
        "Reasons the driver names for lower clocks that cost speed, on any chosen GPU.",
        [Query(expr=by("reason", THROTTLED.at(**CHOSEN), "max"), legend="{{reason}}")],
        texts=THROTTLE_TEXTS,
        size=(24, 6),
        empty="not supported",
    )


def _health() -> list[Json]:
    return [
        timeseries(
            "PCIe link",
            "Bandwidth of the link over its best; a link below it under load moves data slower. It falls at rest to save power.",
            [Query(expr=_of(PCIE.at(**CHOSEN)), legend="{{rank}}/{{gpu}}")],
            unit=Unit.RATIO,
            size=(8, 7),
            decimals=0,
            high=1.0,
            empty="not supported",
        ),
        timeseries(
            "Errors and retries",
            "ECC errors, and allocations that had to be asked for twice, in the last ten minutes.",
            [
                Query(expr=f"sum by (kind) (increase({ECC.at('10m', **CHOSEN)}))", legend="ECC {{kind}}"),
                Query(expr=f"sum(increase({ALLOCATOR_RETRIES.at('10m', **CHOSEN)}))", legend="allocator retries"),
            ],
            unit=Unit.COUNT,
            size=(8, 7),
            decimals=0,
            empty="not supported",
        ),
        timeseries(
            "Energy, kWh",
            "Used by the chosen GPUs in the last hour.",
            [Query(expr=f"sum(increase({ENERGY.at('1h', **CHOSEN)})) / 3.6e6", legend="kWh in the last hour")],
            unit="kwatth",
            size=(8, 7),
            empty="not supported",
        ),
    ]


def _devices() -> Json:
    return table(
        "Devices",
        "What they are. The UUID tells devices apart; the index is the run's own.",
        [Query(expr=GPU_INFO.at(**CHOSEN), now=True, table=True)],
        size=(24, 6),
        empty="no devices",
        transformations=[
            {
                "id": "organize",
                "options": {
                    "excludeByName": dict.fromkeys(("Time", "Value", "__name__", "instance", "job", "run"), True),
                    "indexByName": {
                        name: i for i, name in enumerate(("rank", "gpu", "name", "uuid", "compute_capability", "mig", "owned"))
                    },
                    "renameByName": {
                        "rank": "Rank",
                        "gpu": "GPU",
                        "name": "Name",
                        "uuid": "UUID",
                        "compute_capability": "Compute capability",
                        "mig": "MIG slice",
                        "owned": "Used by this rank",
                    },
                },
            }
        ],
    )
