"""Monitor: what watching costs, and whether it can be trusted."""

from __future__ import annotations

from trainbudget.catalog import Unit
from trainbudget.catalog.gpu_metrics import SAMPLE_AGE
from trainbudget.catalog.money_metrics import FINDINGS, PENDING
from trainbudget.catalog.recording import FRESH, by
from trainbudget.catalog.run_metrics import REPORT_TIME, RUN_INFO, STEP_SECONDS, STEPS
from trainbudget.catalog.self_metrics import (
    DROPPED,
    HOST_AVAILABLE,
    HOST_CHILDREN,
    HOST_CPU,
    HOST_RSS,
    SAMPLE_ERRORS,
    SCRAPE_SECONDS,
    SELF_CPU,
    SELF_ERRORS,
    SELF_SECONDS,
    SERIES_DROPPED,
)
from trainbudget.catalog.thresholds import THRESHOLD_RECORD
from trainbudget.render.grafana_dashboard import MONITOR, dashboard, info_variable
from trainbudget.render.grafana_fields import Json, Query, Steps
from trainbudget.render.grafana_panel import row, stat, table, timeseries

CHOSEN = {"run": "=~$run", "rank": "=~$rank"}
WINDOW = "5m"
#: Columns of the run's description that say nothing here.
HIDDEN = ("Time", "Value", "__name__", "name", "id", "job", "precision", "price_date", "driver_version")


def monitor() -> Json:
    variables = (
        info_variable("run", "Run", RUN_INFO, "run", many=True),
        info_variable("rank", "Rank", RUN_INFO, "rank", many=True),
    )
    panels = [*_stats(), *_cost(), *_trust(), row("Host"), *_host(), _thresholds(), _runs()]
    return dashboard(MONITOR, "What watching costs and whether its numbers can be trusted.", panels, variables, since="now-1h")


def _stats() -> list[Json]:
    hook = f"rate({SELF_SECONDS.at(WINDOW, kind='hook', **CHOSEN)})"
    return [
        stat(
            "Monitors that report",
            "Ranks whose report is news.",
            [Query(expr=f"count({FRESH.at(**CHOSEN)})")],
            unit=Unit.COUNT,
            graph=False,
            empty="none",
        ),
        stat(
            "On the training thread",
            "Share of the training thread's time that hooks take, worst rank.",
            [Query(expr=f"max({hook})")],
            unit=Unit.RATIO,
            decimals=3,
            steps=Steps(marks=((0.001, "orange"), (0.01, "red"))),
            graph=False,
        ),
        stat(
            "CPU of a core",
            "What sampling and feeding take of one core, worst rank.",
            [Query(expr=f"max(rate({SELF_CPU.at(WINDOW, **CHOSEN)}))")],
            unit=Unit.RATIO,
            decimals=2,
            steps=Steps(marks=((0.02, "orange"), (0.05, "red"))),
            graph=False,
        ),
        stat(
            "Oldest report",
            "Age of the newest report, worst rank.",
            [Query(expr=f"max(time() - {REPORT_TIME.at(**CHOSEN)})")],
            unit=Unit.SECONDS,
            decimals=0,
            steps=Steps(marks=((30, "orange"), (60, "red"))),
            graph=False,
        ),
        stat(
            "Facts lost",
            "Facts that did not fit into a queue, all ranks.",
            [Query(expr=f"sum({DROPPED.at(**CHOSEN)})")],
            unit=Unit.COUNT,
            graph=False,
            steps=Steps(marks=((1, "orange"),)),
        ),
        stat(
            "Series left out",
            "Series that would have exceeded a process's limit.",
            [Query(expr=f"sum({SERIES_DROPPED.at(**CHOSEN)})")],
            unit=Unit.COUNT,
            graph=False,
            steps=Steps(marks=((1, "orange"),)),
        ),
    ]


def _cost() -> list[Json]:
    scrape = f"sum(rate({SCRAPE_SECONDS.at(WINDOW, **CHOSEN)}))"
    steps = f"sum(rate({STEPS.at(WINDOW, **CHOSEN)})) > 0"
    return [
        timeseries(
            "Seconds a second by part",
            "Hooks run on the training thread; sampling, feeding and scrapes on threads of their own.",
            [
                Query(expr=f"sum by (kind) (rate({SELF_SECONDS.at(WINDOW, **CHOSEN)}))", legend="{{kind}}"),
                Query(expr=scrape, legend="scrape"),
            ],
            unit=Unit.SECONDS,
            size=(8, 8),
        ),
        timeseries(
            "Hook time of a step",
            "What one optimizer step pays for being watched.",
            [
                Query(
                    expr=f"sum(rate({SELF_SECONDS.at(WINDOW, kind='hook', **CHOSEN)})) / ({steps})",
                    legend="hooks",
                )
            ],
            unit=Unit.SECONDS,
            size=(8, 8),
        ),
        timeseries(
            "Step time, 50 and 99 of a hundred",
            "From the histogram of all steps: outliers beside what is usual.",
            [
                Query(
                    expr=f"histogram_quantile({q}, sum by (le) (rate({STEP_SECONDS.name}_bucket"
                    f'{{run=~"$run",rank=~"$rank"}}[{WINDOW}])))',
                    legend=legend,
                )
                for q, legend in ((0.5, "median"), (0.99, "99 of 100"))
            ],
            unit=Unit.SECONDS,
            size=(8, 8),
        ),
    ]


def _trust() -> list[Json]:
    return [
        timeseries(
            "Age of the newest reading",
            "Seconds since each device last answered.",
            [Query(expr=by("run, rank, gpu", SAMPLE_AGE.at(**CHOSEN), "max"), legend="{{run}} {{rank}}/{{gpu}}")],
            unit=Unit.SECONDS,
            size=(6, 8),
            empty="no devices",
        ),
        timeseries(
            "Device queries that fail",
            "Errors a second by query. Not supported is an answer too: such a query has no series elsewhere.",
            [Query(expr=f"sum by (reason) (rate({SAMPLE_ERRORS.at(WINDOW, **CHOSEN)}))", legend="{{reason}}")],
            unit="cps",
            size=(6, 8),
            empty="none",
        ),
        timeseries(
            "Errors swallowed, findings raised",
            "Errors of the monitor itself by place, and findings, in the last ten minutes.",
            [
                Query(expr=f"sum by (reason) (increase({SELF_ERRORS.at('10m', **CHOSEN)}))", legend="error {{reason}}"),
                Query(expr=f"sum(increase({FINDINGS.at('10m', **CHOSEN)}))", legend="findings"),
            ],
            unit=Unit.COUNT,
            size=(6, 8),
            decimals=0,
        ),
        timeseries(
            "Time not booked yet",
            "GPU-seconds that wait for a later fact to tell their bucket: an open phase, or at most two minutes.",
            [Query(expr=by("run", PENDING.at(**CHOSEN)), legend="{{run}}")],
            unit=Unit.SECONDS,
            size=(6, 8),
        ),
    ]


def _host() -> list[Json]:
    return [
        timeseries(
            "Host memory",
            "Of the training process, its workers, and what can still be had.",
            [
                Query(expr=f"sum({HOST_RSS.at(**CHOSEN)})", legend="process"),
                Query(expr=f"sum({HOST_CHILDREN.at(**CHOSEN)})", legend="workers"),
                Query(expr=f"min({HOST_AVAILABLE.at(**CHOSEN)})", legend="available"),
            ],
            unit=Unit.BYTES,
            size=(12, 7),
            empty="not known",
        ),
        timeseries(
            "CPU of the whole machine",
            "Near 100 % the loader has no room for more workers.",
            [Query(expr=by("run, rank", HOST_CPU.at(**CHOSEN), "max"), legend="{{run}} {{rank}}")],
            unit=Unit.RATIO,
            size=(12, 7),
            decimals=0,
            high=1.0,
            empty="not known",
        ),
    ]


def _thresholds() -> Json:
    return table(
        "Thresholds in force",
        "What the alert rules compare with; edit grafana/rules/thresholds.yaml to change one.",
        [Query(expr=f"max by (name) ({THRESHOLD_RECORD})", now=True, table=True)],
        size=(6, 8),
        empty="the rules are not loaded",
        transformations=[
            {
                "id": "organize",
                "options": {
                    "excludeByName": {"Time": True},
                    "indexByName": {"name": 0, "Value": 1},
                    "renameByName": {"name": "Name"},
                },
            }
        ],
    )


def _runs() -> Json:
    return table(
        "What is watched",
        "As each process describes itself.",
        [Query(expr=RUN_INFO.at(**CHOSEN), now=True, table=True)],
        size=(18, 8),
        transformations=[
            {
                "id": "organize",
                "options": {
                    "excludeByName": dict.fromkeys(HIDDEN, True),
                    "indexByName": {n: i for i, n in enumerate(("run", "rank", "instance", "framework", "backend", "gpu_name"))},
                    "renameByName": {
                        "run": "Run",
                        "rank": "Rank",
                        "instance": "Target",
                        "framework": "Framework",
                        "backend": "Backend",
                        "gpu_name": "GPUs",
                        "currency": "Currency",
                        "price_source": "Price from",
                        "world_size": "World size",
                        "started_at": "Started",
                    },
                },
            }
        ],
    )
