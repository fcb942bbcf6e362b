"""Run: what this run costs against its budget, whether it will fit, where its time went, what is wrong with it."""

from __future__ import annotations

from trainbudget.catalog import Unit
from trainbudget.catalog.gpu_metrics import (
    ALLOCATOR,
    MEMORY_LIMIT,
    MEMORY_USED,
    OOM_FORECAST,
    POWER,
    POWER_LIMIT,
    SM_ACTIVE,
    TEMPERATURE,
    UTILIZATION,
)
from trainbudget.catalog.money_metrics import GPU_SECONDS, PRICE
from trainbudget.catalog.recording import (
    GOODPUT,
    JOB_BUDGET,
    JOB_COST,
    JOB_PROJECTED,
    JOB_WASTED,
    LEAST_HEADROOM,
    OOM_IN,
    STEP_AGE,
    TOKENS_PER_MONEY,
    by,
)
from trainbudget.catalog.run_metrics import (
    BUDGET_MEMORY,
    BUDGET_STEP,
    CHARGED_GPUS,
    DATA_WAIT,
    LAST_STEP_TIME,
    MFU,
    PROJECTED_END,
    RUN_INFO,
    SAMPLES,
    STEP_MEDIAN,
    STEPS,
    TOKENS,
)
from trainbudget.render.grafana_dashboard import RUN, dashboard, info_variable
from trainbudget.render.grafana_look import SEVERITY_TEXTS, bucket_overrides, severity_value
from trainbudget.render.grafana_panel import Json, Override, Query, Steps, colour, line, row, stat, state_timeline, timeseries

ONE = {"run": "$run"}
RANKS = {"run": "$run", "rank": "=~$rank"}
MONEY = {"run": "$run", "currency": "$currency"}
#: Counters move up to two minutes late, when a bucket is final: a shorter window would show jumps.
WINDOW = "5m"
#: How far ahead the dashed line of the memory panel looks.
AHEAD_S = 600
#: Buckets that belong to a step; phases between steps would only hide them.
STEP_BUCKETS = "=~compute|communication|data_wait|host_gap|padding|optimizer_offload|warmup"


def run() -> Json:
    variables = (
        info_variable("run", "Run", RUN_INFO, "run"),
        info_variable("rank", "Rank", RUN_INFO, "rank", many=True, run="$run"),
        info_variable("currency", "Currency", RUN_INFO, "currency", hidden=True, run="$run"),
    )
    panels = [
        *_stats(),
        _memory(),
        _step(),
        _ledger_money(),
        _ledger_time(),
        _projection(),
        _findings(),
        *_throughput(),
        row("Ranks"),
        *_ranks(),
        row("Device", folded=_device()),
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


def _memory() -> Json:
    """The dashed line applies the forecast of the run itself: it meets the limit when memory is expected to run out."""
    used, limit = f"max({MEMORY_USED.at(**RANKS)})", f"min({MEMORY_LIMIT.at(**RANKS)})"
    ahead = f"{used} + ({limit} - {used}) * clamp_max({AHEAD_S} / clamp_min(min({OOM_FORECAST.at(**RANKS)}), 1), 1)"
    return timeseries(
        "Memory",
        "The fullest of the chosen GPUs against the predicted budget and against what may be held. The dashed red line is where "
        "the run's own forecast puts memory ten minutes ahead; without a forecast there is none.",
        [
            Query(expr=used, legend="used"),
            Query(expr=f"max({ALLOCATOR.at(kind='peak_allocated', **RANKS)})", legend="allocated, peak"),
            Query(expr=f"max({BUDGET_MEMORY.at(**ONE)})", legend="budget"),
            Query(expr=limit, legend="limit"),
            Query(expr=ahead, legend="forecast, 10 min ahead"),
        ],
        unit=Unit.BYTES,
        size=(12, 9),
        overrides=[
            Override(name="used", properties={"color": colour("semi-dark-green"), "custom.fillOpacity": 20}),
            line("allocated, peak", "light-green"),
            line("budget", "semi-dark-blue", dashed=True),
            line("limit", "dark-red"),
            line("forecast, 10 min ahead", "semi-dark-red", dashed=True),
        ],
    )


def _step() -> Json:
    booked = f"rate({GPU_SECONDS.at(WINDOW, bucket=STEP_BUCKETS, **RANKS)})"
    per_step = (
        f"{by('bucket', booked)}\n"
        f"/ on () group_left () (sum(rate({STEPS.at(WINDOW, **RANKS)}) * on (run, rank) {CHARGED_GPUS.at(**RANKS)}) > 0)"
    )
    return timeseries(
        "Time of a step",
        "Where one optimizer step's time goes, over five minutes; the dashed line is the plan. What cannot be told "
        "apart is in compute.",
        [Query(expr=per_step, legend="{{bucket}}"), Query(expr=f"max({BUDGET_STEP.at(**ONE)})", legend="planned")],
        unit=Unit.SECONDS,
        size=(12, 9),
        stacked=True,
        overrides=[*bucket_overrides(), line("planned", "text", dashed=True, unstacked=True)],
    )


def _ledger_money() -> Json:
    price = f"max({PRICE.at(**MONEY)}) / 3600"
    return timeseries(
        "Where the money went ($currency)",
        "All money spent so far by what it bought, at today's price. Green was bought; red and orange bought nothing.",
        [Query(expr=f"{by('bucket', GPU_SECONDS.at(**ONE))} * on () group_left () ({price})", legend="{{bucket}}")],
        unit=Unit.MONEY,
        size=(10, 9),
        stacked=True,
        decimals=2,
        table=True,
        empty="no price given",
        overrides=bucket_overrides(),
    )


def _ledger_time() -> Json:
    share = (
        f"{by('bucket', f'rate({GPU_SECONDS.at(WINDOW, **ONE)})')}\n"
        f"/ on () group_left () (sum(rate({GPU_SECONDS.at(WINDOW, **ONE)})) > 0)"
    )
    return timeseries(
        "Where the time goes",
        "Shares of the GPU time over five minutes.",
        [Query(expr=share, legend="{{bucket}}")],
        unit=Unit.RATIO,
        size=(7, 9),
        stacked=True,
        decimals=0,
        high=1.0,
        overrides=bucket_overrides(),
    )


def _projection() -> Json:
    return timeseries(
        "Cost against budget ($currency)",
        "Spent so far, what the whole run will cost at its recent pace, and what it may cost.",
        [
            Query(expr=f"max({JOB_COST.at(**MONEY)})", legend="spent"),
            Query(expr=f"max({JOB_PROJECTED.at(**MONEY)})", legend="projected"),
            Query(expr=f"max({JOB_BUDGET.at(**MONEY)})", legend="budget"),
        ],
        unit=Unit.MONEY,
        size=(7, 9),
        decimals=2,
        empty="no price given",
        overrides=[
            Override(name="spent", properties={"color": colour("semi-dark-green"), "custom.fillOpacity": 20}),
            line("projected", "semi-dark-orange", dashed=True),
            line("budget", "dark-red"),
        ],
    )


def _findings() -> Json:
    return state_timeline(
        "Findings",
        "What is wrong, since when and how bad; docs/findings.md says what each means and which setting helps.",
        [Query(expr=severity_value(run="$run"), legend="{{code}}")],
        texts=SEVERITY_TEXTS,
        size=(24, 6),
        empty="nothing found",
    )


def _throughput() -> list[Json]:
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


def _ranks() -> list[Json]:
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


def _device() -> list[Json]:
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
