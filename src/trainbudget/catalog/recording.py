"""Recording rules: per run what the exporters say per rank. Every join is safe against two exporters with the same labels."""

from __future__ import annotations

from dataclasses import dataclass

from trainbudget.catalog.gpu_metrics import HEADROOM, OOM_FORECAST
from trainbudget.catalog.money_metrics import (
    BUDGET_COST,
    COST,
    FINDING_ACTIVE,
    GPU_SECONDS,
    PRICE,
    PROJECTED_COST,
    WASTED_COST,
    WASTED_SECONDS,
)
from trainbudget.catalog.run_metrics import (
    BUDGET_STEPS,
    CHARGED_GPUS,
    ENDED,
    LAST_STEP_TIME,
    REPORT_TIME,
    RUN_STATE,
    STATES,
    STEPS_DONE,
    TOKENS,
)
from trainbudget.catalog.spec import PREFIX, MetricSpec, Unit, selector
from trainbudget.catalog.thresholds import FRESH_S

#: Counters move when a bucket is final, up to two minutes late: a shorter window would show jumps.
WINDOW = "10m"
#: A run that has been gone for longer is history.
MEMORY = "1h"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSpec:
    """A recorded series.

    Attributes:
        stem: the name after `trainbudget:`.
        labels: the labels it has.
        expr: PromQL.
        help: what it is.
    """

    stem: str
    unit: Unit
    labels: tuple[str, ...]
    expr: str
    help: str

    @property
    def name(self) -> str:
        return PREFIX.rstrip("_") + ":" + self.stem

    def at(self, window: str = "", /, **match: str) -> str:
        """As `MetricSpec.at`."""
        return self.name + selector(match) + (f"[{window}]" if window else "")


def by(labels: str, expression: str, how: str = "sum") -> str:
    return f"{how} by ({labels}) ({expression})"


def fresh(expression: str) -> str:
    """Only series of ranks whose report is news."""
    return f"{expression} and on (run, rank) {FRESH.name}"


def rate(metric: MetricSpec, **match: str) -> str:
    return f"rate({metric.at(WINDOW, **match)})"


_LAST_STATE = by("run", f"last_over_time({RUN_STATE.at(MEMORY)})", "max")

FRESH = RecordSpec(
    stem="fresh",
    unit=Unit.FLAG,
    labels=("run", "rank"),
    expr=by("run, rank", FRESH_S.below(f"time() - {REPORT_TIME.name}"), "count"),
    help="Ranks whose report is news: neither vanished nor left over in a Pushgateway.",
)
GPUS = RecordSpec(
    stem="gpus",
    unit=Unit.COUNT,
    labels=("run",),
    expr=by("run", by("run, rank", fresh(CHARGED_GPUS.name), "max")),
    help="GPUs the run pays for now.",
)
SPEND = RecordSpec(
    stem="spend_per_hour",
    unit=Unit.MONEY,
    labels=("run", "currency"),
    expr=by(
        "run, currency",
        f"{by('run, rank, currency', PRICE.name, 'max')} * on (run, rank) group_left () "
        f"{by('run, rank', fresh(CHARGED_GPUS.name), 'max')}",
    ),
    help="Money an hour the run costs now: price times GPUs, whatever they do.",
)
WASTED_SHARE = RecordSpec(
    stem="wasted_ratio",
    unit=Unit.RATIO,
    labels=("run", "bucket"),
    expr=f"{by('run, bucket', rate(WASTED_SECONDS))} / on (run) group_left () ({by('run', rate(GPU_SECONDS))} > 0)",
    help="Share of the GPU time that bought nothing, by cause.",
)
WASTED = RecordSpec(
    stem="wasted_per_hour",
    unit=Unit.MONEY,
    labels=("run", "bucket", "currency"),
    expr=f"{WASTED_SHARE.name} * on (run) group_left (currency) topk by (run) (1, {SPEND.name})",
    help="Money an hour that buys nothing, by cause.",
)
GOODPUT = RecordSpec(
    stem="goodput_ratio",
    unit=Unit.RATIO,
    labels=("run",),
    expr=f"{by('run', rate(GPU_SECONDS, bucket='compute'))} / ({by('run', rate(GPU_SECONDS))} > 0)",
    help="Share of the GPU time in which the model learned.",
)
JOB_COST = RecordSpec(
    stem="cost",
    unit=Unit.MONEY,
    labels=("run", "currency"),
    expr=by("run, currency", by("run, rank, currency", f"last_over_time({COST.at(MEMORY)})", "max")),
    help="Money spent so far, all ranks; remembered for an hour after the run is gone.",
)
JOB_WASTED = RecordSpec(
    stem="wasted_cost",
    unit=Unit.MONEY,
    labels=("run", "currency"),
    expr=by("run, currency", by("run, rank, currency, bucket", f"last_over_time({WASTED_COST.at(MEMORY)})", "max")),
    help="Money wasted so far, all ranks.",
)
JOB_PROJECTED = RecordSpec(
    stem="projected_cost",
    unit=Unit.MONEY,
    labels=("run", "currency"),
    expr=by("run, currency", fresh(PROJECTED_COST.name), "max"),
    help="What the run will have cost at its end.",
)
JOB_BUDGET = RecordSpec(
    stem="budget_cost",
    unit=Unit.MONEY,
    labels=("run", "currency"),
    expr=by("run, currency", f"last_over_time({BUDGET_COST.at(MEMORY)})", "max"),
    help="What the run may cost.",
)
BUDGET_USED = RecordSpec(
    stem="projected_budget_ratio",
    unit=Unit.RATIO,
    labels=("run", "currency"),
    expr=f"{JOB_PROJECTED.name} / ({JOB_BUDGET.name} > 0)",
    help="Projected cost over budget: above 1 the run will cost more than it may.",
)
OOM_IN = RecordSpec(
    stem="oom_seconds",
    unit=Unit.SECONDS,
    labels=("run", "rank", "gpu"),
    expr=by("run, rank, gpu", fresh(OOM_FORECAST.name), "min"),
    help="Seconds until a GPU is expected to be out of memory.",
)
LEAST_HEADROOM = RecordSpec(
    stem="headroom_bytes",
    unit=Unit.BYTES,
    labels=("run",),
    expr=by("run", fresh(HEADROOM.name), "min"),
    help="Memory that was left at the worst moment so far, on the tightest GPU.",
)
FINDING = RecordSpec(
    stem="finding",
    unit=Unit.COUNT,
    labels=("run", "code", "severity"),
    # What was wrong with a run that has ended well is history; how a failed one ended is news.
    expr=by(
        "run, code, severity",
        f"{fresh(f'{FINDING_ACTIVE.name} > 0')}\nunless on (run, rank) (({RUN_STATE.name} >= {ENDED}) < {STATES['failed']})\n",
        "count",
    ),
    help="Ranks on which a finding is active; not of runs that have ended well.",
)
STEP_AGE = RecordSpec(
    stem="last_step_age_seconds",
    unit=Unit.SECONDS,
    labels=("run",),
    expr=f"time() - {by('run', fresh(LAST_STEP_TIME.name), 'max')}",
    help="Seconds since any rank finished a step.",
)
LIVE_STATE = RecordSpec(
    stem="state",
    unit=Unit.STATE,
    labels=("run",),
    expr=(f"{by('run', fresh(RUN_STATE.name), 'max')}\nor ({_LAST_STATE} >= {ENDED})\nor 0 * {_LAST_STATE}"),
    help="What the run does, worst rank first; 0 = gone without having been seen to end.",
)
VANISHED = RecordSpec(
    stem="vanished",
    unit=Unit.FLAG,
    labels=("run",),
    # Left out: runs that were seen to end or to leave their training loop, and those that had done all their steps.
    expr=(
        f"({_LAST_STATE} < {STATES['idle']})\n"
        f"and on () {FRESH_S.series}\n"
        f"unless on (run) {by('run', FRESH.name, 'count')}\n"
        f"unless on (run) (\n"
        f"  {by('run', f'last_over_time({STEPS_DONE.at(MEMORY)})', 'max')}\n"
        f"  >= {by('run', f'last_over_time({BUDGET_STEPS.at(MEMORY)})', 'max')}\n"
        f")"
    ),
    help="Runs that were in the middle of their work when they were last heard of; the value is their last state.",
)
TOKENS_PER_MONEY = RecordSpec(
    stem="useful_tokens_per_money",
    unit=Unit.COUNT,
    labels=("run", "currency"),
    expr=f"sum without (kind) ({by('run, kind', TOKENS.at(kind='useful'))}) * on (run) group_left (currency) "
    f"(1 / (topk by (run) (1, {JOB_COST.name}) > 0))",
    help="Useful tokens bought for one unit of money, over the whole run so far.",
)

#: In this order, in one group: each may use those before it.
RECORDING: tuple[RecordSpec, ...] = (
    FRESH,
    GPUS,
    SPEND,
    WASTED_SHARE,
    WASTED,
    GOODPUT,
    JOB_COST,
    JOB_WASTED,
    JOB_PROJECTED,
    JOB_BUDGET,
    BUDGET_USED,
    OOM_IN,
    LEAST_HEADROOM,
    FINDING,
    STEP_AGE,
    LIVE_STATE,
    VANISHED,
    TOKENS_PER_MONEY,
)
