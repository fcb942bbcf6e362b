"""Run: what this run costs against its budget, whether it will fit, where its time went, what is wrong with it."""

from __future__ import annotations

from trainbudget.catalog import Unit
from trainbudget.catalog.recording import (
    GOODPUT,
    JOB_BUDGET,
    JOB_COST,
    JOB_PROJECTED,
    JOB_WASTED,
    LEAST_HEADROOM,
    OOM_IN,
    STEP_AGE,
)
from trainbudget.catalog.run_metrics import (
    MFU,
    PROJECTED_END,
    RUN_INFO,
)
from trainbudget.render.grafana_dashboard import RUN, dashboard, info_variable
from trainbudget.render.grafana_fields import Json, Override, Query, Steps
from trainbudget.render.grafana_panel import row, stat
from trainbudget.render.grafana_run_money import cost_against_budget, ledger_money, ledger_time, memory, step_time
from trainbudget.render.grafana_run_ranks import devices, findings, ranks, throughput
from trainbudget.render.grafana_run_select import MONEY, ONE, RANKS


def run() -> Json:
    variables = (
        info_variable("run", "Run", RUN_INFO, "run"),
        info_variable("rank", "Rank", RUN_INFO, "rank", many=True, run="$run"),
        info_variable("currency", "Currency", RUN_INFO, "currency", hidden=True, run="$run"),
    )
    panels = [
        *_stats(),
        memory(),
        step_time(),
        ledger_money(),
        ledger_time(),
        cost_against_budget(),
        findings(),
        *throughput(),
        row("Ranks"),
        *ranks(),
        row("Device", folded=devices()),
    ]
    about = "One run: what it costs against its budget, whether it will fit, where its time went and what is wrong."
    return dashboard(RUN, about, panels, variables, since="now-3h", refresh="10s")


def _stats() -> list[Json]:
    over = f"max({JOB_PROJECTED.at(**MONEY)}) / max({JOB_BUDGET.at(**MONEY)} > 0)"
    return [
        stat(
            "Money ($currency)",
            "Spent so far by all ranks, what it will have cost at its end, and what it may cost.",
            [
                Query(expr=f"max({JOB_COST.at(**MONEY)})", legend="spent"),
                Query(expr=f"max({JOB_PROJECTED.at(**MONEY)})", legend="projected"),
                Query(expr=f"max({JOB_BUDGET.at(**MONEY)})", legend="budget"),
                Query(expr=f"max({JOB_WASTED.at(**MONEY)})", legend="wasted"),
            ],
            unit=Unit.MONEY,
            size=(8, 4),
            decimals=2,
            names=True,
            graph=False,
            empty="no price given",
            steps=Steps(base="text"),
            overrides=[Override(name="wasted", properties={"thresholds": Steps(base="semi-dark-orange").json()})],
        ),
        stat(
            "Projected / budget",
            "Above 100 % the run will cost more than it may.",
            [Query(expr=over)],
            unit=Unit.RATIO,
            size=(3, 4),
            decimals=0,
            steps=Steps(marks=((0.95, "orange"), (1.0, "red"))),
        ),
        stat(
            "Ends",
            "When the run will end at its recent pace.",
            [Query(expr=f"max({PROJECTED_END.at(**ONE)}) * 1000")],
            unit="dateTimeFromNow",
            size=(3, 4),
            graph=False,
            steps=Steps(base="text"),
        ),
        stat(
            "Memory head-room",
            "What was left at the worst moment so far, on the tightest GPU; below it, when memory is expected to run out.",
            [
                Query(expr=f"min({LEAST_HEADROOM.at(**ONE)})", legend="left"),
                Query(expr=f"min({OOM_IN.at(**ONE)})", legend="full in"),
            ],
            unit=Unit.BYTES,
            size=(4, 4),
            decimals=1,
            names=True,
            graph=False,
            steps=Steps(base="red", marks=((1 * 2.0**30, "orange"), (4 * 2.0**30, "green"))),
            overrides=[
                Override(
                    name="full in",
                    properties={"unit": "s", "decimals": 0, "thresholds": Steps(base="red", marks=((3600, "orange"),)).json()},
                )
            ],
        ),
        stat(
            "Goodput",
            "Share of the GPU time in which the model learns.",
            [Query(expr=f"max({GOODPUT.at(**ONE)})")],
            unit=Unit.RATIO,
            size=(2, 4),
            decimals=0,
            steps=Steps(base="red", marks=((0.6, "orange"), (0.8, "green"))),
            graph=False,
        ),
        stat(
            "MFU",
            "Model FLOPs a second over the GPUs' dense peak in the precision trained in.",
            [Query(expr=f"avg({MFU.at(**RANKS)})")],
            unit=Unit.RATIO,
            size=(2, 4),
            decimals=0,
            graph=False,
            steps=Steps(base="text"),
        ),
        stat(
            "Last step",
            "Seconds since any rank finished a step.",
            [Query(expr=f"max({STEP_AGE.at(**ONE)})")],
            unit=Unit.SECONDS,
            size=(2, 4),
            decimals=0,
            steps=Steps(base="text", marks=((120, "orange"), (600, "red"))),
            graph=False,
        ),
    ]
