"""Run, last rows: findings, throughput, ranks and devices."""

from __future__ import annotations

from trainbudget.catalog import Unit
from trainbudget.catalog.gpu_metrics import (
    POWER,
    POWER_LIMIT,
    SM_ACTIVE,
    TEMPERATURE,
    UTILIZATION,
)
from trainbudget.catalog.recording import (
    TOKENS_PER_MONEY,
    by,
)
from trainbudget.catalog.run_metrics import (
    DATA_WAIT,
    LAST_STEP_TIME,
    SAMPLES,
    STEP_MEDIAN,
    TOKENS,
)
from trainbudget.render.grafana_fields import Json, Override, Query, Steps, colour, line
from trainbudget.render.grafana_look import SEVERITY_TEXTS, severity_value
from trainbudget.render.grafana_panel import stat, state_timeline, timeseries
from trainbudget.render.grafana_run_select import MONEY, RANKS, WINDOW


def findings() -> Json:
    return state_timeline(
        "Findings",
        "What is wrong, since when and how bad; docs/findings.md says what each means and which setting helps.",
        [Query(expr=severity_value(run="$run"), legend="{{code}}")],
        texts=SEVERITY_TEXTS,
        size=(24, 6),
        empty="nothing found",
    )


def throughput() -> list[Json]:
    return [
        timeseries(
            "Throughput, a second",
            "Tokens, and the useful ones without padding; samples where no tokens are counted.",
            [
                Query(expr=f"sum by (kind) (rate({TOKENS.at(WINDOW, **RANKS)}))", legend="{{kind}} tokens"),
                Query(
                    expr=f"sum(rate({SAMPLES.at(WINDOW, **RANKS)})) unless on () count({TOKENS.at(**RANKS)})",
                    legend="samples",
                ),
            ],
            unit=Unit.COUNT,
            size=(12, 7),
            overrides=[
                Override(name="useful tokens", properties={"color": colour("semi-dark-green")}),
                Override(name="all tokens", properties={"color": colour("semi-dark-blue")}),
            ],
        ),
        timeseries(
            "Useful tokens for one $currency",
            "Over the whole run so far: rises while start-up is paid off, falls with waste.",
            [Query(expr=f"max({TOKENS_PER_MONEY.at(**MONEY)})", legend="useful tokens")],
            unit=Unit.COUNT,
            size=(12, 7),
            empty="no price, or tokens are not counted",
            overrides=[Override(name="useful tokens", properties={"color": colour("semi-dark-green")})],
        ),
    ]


def ranks() -> list[Json]:
    return [
        timeseries(
            "Step by rank",
            "Median step of each rank: one that is always slower holds all others up.",
            [Query(expr=by("rank", STEP_MEDIAN.at(**RANKS), "max"), legend="rank {{rank}}")],
            unit=Unit.SECONDS,
            size=(8, 7),
        ),
        timeseries(
            "Data wait by rank",
            "Share of the recent steps spent waiting for data.",
            [Query(expr=by("rank", DATA_WAIT.at(**RANKS), "max"), legend="rank {{rank}}")],
            unit=Unit.RATIO,
            size=(8, 7),
            decimals=0,
            steps=Steps(base="transparent", marks=((0.3, "red"),)),
        ),
        timeseries(
            "Seconds since the last step by rank",
            "The rank whose line rises first is the one the others wait for.",
            [Query(expr=f"time() - {by('rank', LAST_STEP_TIME.at(**RANKS), 'max')}", legend="rank {{rank}}")],
            unit=Unit.SECONDS,
            size=(8, 7),
        ),
    ]


def devices() -> list[Json]:
    gpu = "rank, gpu"
    return [
        timeseries(
            "Utilization next to SM activity",
            "Utilization says that some kernel ran, SM activity how much of the GPU it used: high and low is busy but slow.",
            [
                Query(expr=by(gpu, UTILIZATION.at(**RANKS), "max"), legend="utilization {{rank}}/{{gpu}}"),
                Query(expr=by(gpu, SM_ACTIVE.at(**RANKS), "max"), legend="SM active {{rank}}/{{gpu}}"),
            ],
            unit=Unit.RATIO,
            size=(12, 8),
            high=1.0,
            decimals=0,
        ),
        timeseries(
            "Power",
            "Draw against the limit in force: a GPU that works draws most of it.",
            [
                Query(expr=by(gpu, POWER.at(**RANKS), "max"), legend="draw {{rank}}/{{gpu}}"),
                Query(expr=f"max({POWER_LIMIT.at(**RANKS)})", legend="limit"),
            ],
            unit=Unit.WATTS,
            size=(8, 8),
            overrides=[line("limit", "dark-red", dashed=True)],
        ),
        stat(
            "Hottest",
            "The hottest of the chosen GPUs.",
            [Query(expr=f"max({TEMPERATURE.at(**RANKS)})")],
            unit=Unit.CELSIUS,
            size=(4, 8),
            decimals=0,
            steps=Steps(marks=((80, "orange"), (88, "red"))),
        ),
    ]
