"""Fleet: what all runs cost now, what of it is wasted on what, and which run to look at first."""

from __future__ import annotations

from trainbudget.catalog import Unit
from trainbudget.catalog.gpu_metrics import UTILIZATION
from trainbudget.catalog.recording import (
    BUDGET_USED,
    GOODPUT,
    GPUS,
    JOB_BUDGET,
    JOB_COST,
    JOB_PROJECTED,
    LIVE_STATE,
    OOM_IN,
    SPEND,
    STEP_AGE,
    WASTED,
    WASTED_SHARE,
    fresh,
)
from trainbudget.catalog.run_metrics import RUN_INFO
from trainbudget.render.grafana_dashboard import FLEET, RUN, dashboard, info_variable
from trainbudget.render.grafana_fields import Json, Override, Query, Steps
from trainbudget.render.grafana_look import SEVERITY_TEXTS, STATE_TEXTS, bucket_overrides, severity_value
from trainbudget.render.grafana_panel import bars, stat, state_timeline, table, timeseries

RUNS = {"run": "=~$run"}
MONEY = {"run": "=~$run", "currency": "$currency"}
BAD_SHARE = Steps(base="green", marks=((0.1, "orange"), (0.25, "red")))
#: Utilization below this is nothing but a desktop or a monitoring query.
IDLE = 0.05
_NO_PRICE = "no price given"


def fleet() -> Json:
    variables = (
        info_variable("currency", "Currency", RUN_INFO, "currency"),
        info_variable("run", "Run", RUN_INFO, "run", many=True),
    )
    panels = [*_stats(), *_money(), _runs(), _states(), _offenders()]
    return dashboard(FLEET, "What all runs cost now, what is wasted, and where to look first.", panels, variables, since="now-6h")


def _stats() -> list[Json]:
    spend, wasted = f"sum({SPEND.at(**MONEY)})", f"sum({WASTED.at(**MONEY)})"
    return [
        stat(
            "Spend per hour ($currency)",
            "Price times GPUs of all runs that report, whatever the GPUs do.",
            [Query(expr=spend)],
            unit=Unit.MONEY,
            decimals=2,
            empty=_NO_PRICE,
            steps=Steps(base="text"),
            graph=False,
        ),
        stat(
            "Wasted per hour ($currency)",
            "The part of it that buys nothing: waiting, idle, stalled and repeated work, over the last ten minutes.",
            [Query(expr=wasted)],
            unit=Unit.MONEY,
            decimals=2,
            empty=_NO_PRICE,
            steps=Steps(base="green", marks=((0.01, "orange"), (5.0, "red"))),
            graph=False,
        ),
        stat(
            "Wasted share",
            "Waste over all GPU time, weighted by GPUs; known without a price too.",
            [Query(expr=f"sum(sum by (run) ({WASTED_SHARE.at(**RUNS)}) * on (run) {GPUS.at(**RUNS)}) / sum({GPUS.at(**RUNS)})")],
            unit=Unit.RATIO,
            size=(3, 4),
            decimals=0,
            steps=BAD_SHARE,
        ),
        stat(
            "Goodput",
            "Share of the GPU time in which models learn, weighted by GPUs.",
            [Query(expr=f"sum({GOODPUT.at(**RUNS)} * on (run) {GPUS.at(**RUNS)}) / sum({GPUS.at(**RUNS)})")],
            unit=Unit.RATIO,
            size=(3, 4),
            decimals=0,
            steps=Steps(base="red", marks=((0.6, "orange"), (0.8, "green"))),
        ),
        stat(
            "Runs over budget",
            "Runs whose projected cost exceeds what they may cost.",
            [Query(expr=f"count({BUDGET_USED.at(**RUNS)} > 1) or 0 * count({GPUS.at(**RUNS)})")],
            unit=Unit.COUNT,
            size=(3, 4),
            steps=Steps(marks=((1, "red"),)),
            graph=False,
        ),
        stat(
            "OOM within 1 h",
            "Runs that are expected to be out of memory within the hour.",
            [Query(expr=f"count(count by (run) ({OOM_IN.at(**RUNS)} < 3600)) or 0 * count({GPUS.at(**RUNS)})")],
            unit=Unit.COUNT,
            size=(3, 4),
            steps=Steps(marks=((1, "red"),)),
            graph=False,
        ),
        stat(
            "GPUs idle / in use",
            "GPUs below 5 % utilization, and all that are paid for. One that does not tell is not counted idle.",
            [
                Query(
                    expr=f"count({fresh(f'({UTILIZATION.at(**RUNS)} < {IDLE})')}) or 0 * count({UTILIZATION.at(**RUNS)})",
                    legend="idle",
                ),
                Query(expr=f"sum({GPUS.at(**RUNS)})", legend="paid for"),
            ],
            unit=Unit.COUNT,
            names=True,
            graph=False,
            steps=Steps(base="text"),
            overrides=[Override(name="idle", properties={"thresholds": Steps(marks=((1, "orange"),)).json()})],
        ),
    ]


def _money() -> list[Json]:
    return [
        timeseries(
            "Waste per hour by cause ($currency)",
            "Where the money goes that buys nothing. The colour of a cause is the same on every dashboard.",
            [Query(expr=f"sum by (bucket) ({WASTED.at(**MONEY)})", legend="{{bucket}}")],
            unit=Unit.MONEY,
            size=(15, 9),
            stacked=True,
            decimals=2,
            table=True,
            empty=_NO_PRICE,
            overrides=bucket_overrides(),
        ),
        timeseries(
            "Spend per hour by run ($currency)",
            "What each run costs an hour while it holds its GPUs.",
            [Query(expr=f"sum by (run) ({SPEND.at(**MONEY)})", legend="{{run}}")],
            unit=Unit.MONEY,
            size=(9, 9),
            stacked=True,
            decimals=2,
            empty=_NO_PRICE,
        ),
    ]


#: Columns of the table of runs: title, PromQL by run, properties.
def _columns() -> list[tuple[str, str, Json]]:
    share_bar = {"type": "gauge", "mode": "basic", "valueDisplayMode": "text"}
    text = {"type": "color-text"}
    return [
        ("State", LIVE_STATE.at(**RUNS), {"mappings": STATE_TEXTS, "custom.cellOptions": text, "custom.width": 95}),
        ("GPUs", GPUS.at(**RUNS), {"custom.width": 60}),
        ("Spent", f"max by (run) ({JOB_COST.at(**MONEY)})", {"decimals": 2, "custom.width": 80}),
        ("Projected", f"max by (run) ({JOB_PROJECTED.at(**MONEY)})", {"decimals": 2, "custom.width": 100}),
        ("Budget", f"max by (run) ({JOB_BUDGET.at(**MONEY)})", {"decimals": 2, "custom.width": 80}),
        (
            "Of budget",
            f"max by (run) ({BUDGET_USED.at(**MONEY)})",
            {
                "unit": "percentunit",
                "decimals": 0,
                "min": 0,
                "max": 1.5,
                "color": {"mode": "thresholds"},
                "thresholds": Steps(marks=((0.9, "orange"), (1.0, "red"))).json(),
                "custom.cellOptions": share_bar,
                "custom.width": 140,
            },
        ),
        ("Wasted / h", f"sum by (run) ({WASTED.at(**MONEY)})", {"decimals": 2, "custom.width": 105}),
        (
            "Wasted",
            f"sum by (run) ({WASTED_SHARE.at(**RUNS)})",
            {
                "unit": "percentunit",
                "decimals": 0,
                "min": 0,
                "max": 1,
                "color": {"mode": "thresholds"},
                "thresholds": BAD_SHARE.json(),
                "custom.cellOptions": share_bar,
                "custom.width": 140,
            },
        ),
        ("Last step", STEP_AGE.at(**RUNS), {"unit": "s", "decimals": 0, "custom.width": 90}),
    ]


def _runs() -> Json:
    columns = _columns()
    worst = f"topk by (run) (1, {severity_value(**RUNS)})"
    queries = [Query(expr=f"max by (run) ({expr})", now=True, table=True) for _, expr, _ in columns]
    queries.append(Query(expr=worst, now=True, table=True))
    names = {f"Value #{chr(ord('A') + i)}": title for i, (title, _, _) in enumerate(columns)}
    severity = f"Value #{chr(ord('A') + len(columns))}"
    order = ["run", "Value #A", severity, "code", *list(names)[1:]]
    to_run = {
        "title": "Open the run",
        "url": f"/d/{RUN}?var-run=${{__value.raw:percentencode}}&var-datasource=${{datasource}}&${{__url_time_range}}",
        "targetBlank": False,
    }
    overrides = [Override(name=title, properties=properties) for title, _, properties in columns]
    overrides.append(Override(name="Run", properties={"links": [to_run], "custom.minWidth": 200}))
    overrides.append(
        Override(
            name="Severity",
            properties={
                "mappings": SEVERITY_TEXTS,
                "custom.cellOptions": {"type": "color-text"},
                "custom.width": 80,
                "noValue": "",
            },
        )
    )
    overrides.append(Override(name="Worst finding", properties={"custom.width": 190, "noValue": ""}))
    return table(
        "Runs ($currency)",
        "Every run that reports or has been heard of within the hour. A name leads to the run.",
        queries,
        size=(24, 8),
        overrides=overrides,
        sort_by="Wasted / h",
        transformations=[
            {"id": "joinByField", "options": {"byField": "run", "mode": "outer"}},
            {
                "id": "organize",
                "options": {
                    "excludeByName": {f"Time{n}": True for n in ("", *(f" {i}" for i in range(1, len(queries) + 1)))},
                    "indexByName": {name: place for place, name in enumerate(order)},
                    "renameByName": {**names, "run": "Run", "code": "Worst finding", severity: "Severity"},
                },
            },
        ],
    )


def _states() -> Json:
    return state_timeline(
        "What the runs do",
        "One line a run. Gone = not heard of for five minutes without having been seen to end.",
        [Query(expr=LIVE_STATE.at(**RUNS), legend="{{run}}")],
        texts=STATE_TEXTS,
        size=(15, 8),
    )


def _offenders() -> Json:
    return bars(
        "Worst offenders, wasted per hour ($currency)",
        "The ten runs that waste most money now.",
        [Query(expr=f"topk(10, sum by (run) ({WASTED.at(**MONEY)}))", legend="{{run}}", now=True)],
        unit=Unit.MONEY,
        size=(9, 8),
        decimals=2,
        empty=_NO_PRICE,
        steps=Steps(base="semi-dark-orange", marks=((5.0, "red"),)),
    )
