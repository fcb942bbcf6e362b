"""Run, second and third rows: memory and step against plan, where money and time went, cost against budget."""

from __future__ import annotations

from trainbudget.catalog import Unit
from trainbudget.catalog.gpu_metrics import (
    ALLOCATOR,
    MEMORY_LIMIT,
    MEMORY_USED,
    OOM_FORECAST,
)
from trainbudget.catalog.money_metrics import GPU_SECONDS, PRICE
from trainbudget.catalog.recording import (
    JOB_BUDGET,
    JOB_COST,
    JOB_PROJECTED,
    by,
)
from trainbudget.catalog.run_metrics import (
    BUDGET_MEMORY,
    BUDGET_STEP,
    CHARGED_GPUS,
    STEPS,
)
from trainbudget.render.grafana_fields import Json, Override, Query, colour, line
from trainbudget.render.grafana_look import bucket_overrides
from trainbudget.render.grafana_panel import timeseries
from trainbudget.render.grafana_run_select import AHEAD_S, MONEY, ONE, RANKS, STEP_BUCKETS, WINDOW


def memory() -> Json:
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


def step_time() -> Json:
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


def ledger_money() -> Json:
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


def ledger_time() -> Json:
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


def cost_against_budget() -> Json:
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
