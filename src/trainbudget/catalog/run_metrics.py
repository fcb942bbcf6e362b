"""Metrics of a run as a whole: what it is, where it stands, steps, time, memory budget."""

from __future__ import annotations

from collections.abc import Iterable

from trainbudget.catalog.labels import UNKNOWN_CURRENCY, clean
from trainbudget.catalog.spec import Histogram, Kind, MetricSpec, Read, Sample, Snapshot, Unit
from trainbudget.engine.tracks.steps import STEP_BUCKETS_S

#: The run's state as a number, so that a state timeline can show it; 8 and above have ended.
STATES = {
    "starting": 1,
    "training": 2,
    "evaluating": 3,
    "saving": 4,
    "compiling": 5,
    "stalled": 6,
    "idle": 7,
    "finished": 8,
    "interrupted": 9,
    "stopped": 10,
    "failed": 11,
}
ENDED = STATES["finished"]


def _one(value: float | None) -> Iterable[Sample]:
    return (((), value),)


def _info(snapshot: Snapshot) -> Iterable[Sample]:
    report = snapshot.report
    header, price, model = report.header, report.price, report.model
    names = sorted({g.info.name for g in report.gpus if g.info.name})
    values = (
        header.run or "",
        header.id or "",
        header.framework or "",
        header.backend or "none",
        header.world_size or 1,
        report.currency or (UNKNOWN_CURRENCY if price is not None else ""),
        (price.source if price is not None else None) or "",
        (price.date if price is not None else None) or "",
        ", ".join(names),
        header.driver_version or "",
        (model.autocast or model.parameter_dtype if model is not None else None) or "",
        header.started_at or "",
    )
    return ((tuple(clean(v) for v in values), 1.0),)


def _histogram(snapshot: Snapshot) -> Histogram | None:
    steps = snapshot.report.steps
    if not steps.histogram or not steps.done:
        return None
    return Histogram(bounds=STEP_BUCKETS_S, counts=steps.histogram, total=steps.step_sum_s)


def _budget(name: str) -> Read:
    def read(snapshot: Snapshot) -> Iterable[Sample]:
        bound = snapshot.report.budget.get(name)
        return _one(None if bound is None else bound.value)

    return read


def _projected_end(snapshot: Snapshot) -> Iterable[Sample]:
    projection = snapshot.report.projection
    return _one(None if projection is None else snapshot.unix_s(projection.end_at_s))


def _projected_run(snapshot: Snapshot) -> Iterable[Sample]:
    projection = snapshot.report.projection
    return _one(None if projection is None else projection.run_time_s)


def _tokens(snapshot: Snapshot) -> Iterable[Sample]:
    steps = snapshot.report.steps
    return ((("all",), steps.tokens), (("useful",), steps.useful_tokens))


def _step_rate(snapshot: Snapshot) -> Iterable[Sample]:
    steps = snapshot.report.steps
    return _one(steps.samples if steps.samples > 0 else None)


def _ended(snapshot: Snapshot) -> Iterable[Sample]:
    return _one(0.0 if snapshot.report.outcome is not None else 1.0)


G, C = Kind.GAUGE, Kind.COUNTER

RUN_INFO = MetricSpec(
    stem="run_info",
    kind=G,
    unit=Unit.INFO,
    help="Always 1: what the run is. `run` is NAME-ID as the record's folder is called.",
    labels=(
        "name",
        "id",
        "framework",
        "backend",
        "world_size",
        "currency",
        "price_source",
        "price_date",
        "gpu_name",
        "driver_version",
        "precision",
        "started_at",
    ),
    read=_info,
)
UP = MetricSpec(
    stem="up", kind=G, unit=Unit.FLAG, help="1 while the run goes on, 0 once it has ended and was seen to end.", read=_ended
)
RUN_STATE = MetricSpec(
    stem="run_state",
    kind=G,
    unit=Unit.STATE,
    help="What the run does: " + ", ".join(f"{number} {name}" for name, number in STATES.items()) + ".",
    read=lambda s: _one(STATES.get(s.report.state)),
)
REPORT_TIME = MetricSpec(
    stem="report_timestamp_seconds",
    kind=G,
    unit=Unit.TIMESTAMP,
    help="When the numbers here were taken. Old means that the monitor is stuck, or that a pushed group outlived its run.",
    read=lambda s: _one(s.unix_s(s.report.t_s)),
)
CHARGED_GPUS = MetricSpec(
    stem="charged_gpus",
    kind=G,
    unit=Unit.COUNT,
    help="GPUs this process pays for: owned ones, on local rank 0 also the job's visible unused ones.",
    read=lambda s: _one(s.report.charged_gpus),
)
STEPS = MetricSpec(
    stem="steps_total",
    kind=C,
    unit=Unit.COUNT,
    help="Optimizer steps done, repeated ones included.",
    read=lambda s: _one(s.report.steps.done),
)
STEPS_DONE = MetricSpec(
    stem="last_step",
    kind=G,
    unit=Unit.COUNT,
    help="Number of the newest optimizer step.",
    read=lambda s: _one(s.report.steps.last),
)
LAST_STEP_TIME = MetricSpec(
    stem="last_step_timestamp_seconds",
    kind=G,
    unit=Unit.TIMESTAMP,
    help="When the newest optimizer step ended.",
    read=lambda s: _one(s.unix_s(s.report.steps.last_end_s)),
)
STEP_MEDIAN = MetricSpec(
    stem="step_median_seconds",
    kind=G,
    unit=Unit.SECONDS,
    help="Median duration of the steady steps among the last 100 (or 10 minutes), data wait not included.",
    read=lambda s: _one(s.report.steps.step_time_s),
)
DATA_WAIT = MetricSpec(
    stem="data_wait_ratio",
    kind=G,
    unit=Unit.RATIO,
    help="Share of the recent steps' wall time spent waiting for data.",
    read=lambda s: _one(s.report.data_wait_ratio),
)
TOKENS = MetricSpec(
    stem="tokens_total",
    kind=C,
    unit=Unit.COUNT,
    help="Tokens trained on: `all`, and the `useful` ones (without padding).",
    labels=("kind",),
    read=_tokens,
)
SAMPLES = MetricSpec(stem="samples_total", kind=C, unit=Unit.COUNT, help="Samples trained on.", read=_step_rate)
MFU = MetricSpec(
    stem="model_flops_utilization_ratio",
    kind=G,
    unit=Unit.RATIO,
    help="Model FLOPs a second over the GPUs' dense peak in the precision trained in.",
    read=lambda s: _one(s.report.steps.model_flops_utilization_ratio),
)
BUDGET_MEMORY = MetricSpec(
    stem="budget_memory_bytes",
    kind=G,
    unit=Unit.BYTES,
    help="Peak memory a GPU was planned to need.",
    read=_budget("memory_peak_bytes"),
)
BUDGET_STEP = MetricSpec(
    stem="budget_step_seconds",
    kind=G,
    unit=Unit.SECONDS,
    help="Planned duration of one optimizer step.",
    read=_budget("step_time_s"),
)
BUDGET_RUN = MetricSpec(
    stem="budget_run_seconds",
    kind=G,
    unit=Unit.SECONDS,
    help="Planned duration of the run.",
    read=_budget("run_time_s"),
)
BUDGET_STEPS = MetricSpec(
    stem="budget_steps",
    kind=G,
    unit=Unit.COUNT,
    help="Planned number of optimizer steps.",
    read=lambda s: _one(s.report.steps.total),
)
PROJECTED_END = MetricSpec(
    stem="projected_end_timestamp_seconds",
    kind=G,
    unit=Unit.TIMESTAMP,
    help="When the run will end at its recent pace.",
    read=_projected_end,
)
PROJECTED_RUN = MetricSpec(
    stem="projected_run_seconds",
    kind=G,
    unit=Unit.SECONDS,
    help="How long the whole run will have taken at its recent pace.",
    read=_projected_run,
)
STEP_SECONDS = MetricSpec(
    stem="step_seconds",
    kind=Kind.HISTOGRAM,
    unit=Unit.SECONDS,
    help="Duration of optimizer steps, data wait not included.",
    read_histogram=_histogram,
)
RUN_METRICS = (
    RUN_INFO,
    UP,
    RUN_STATE,
    REPORT_TIME,
    CHARGED_GPUS,
    STEPS,
    STEPS_DONE,
    LAST_STEP_TIME,
    STEP_MEDIAN,
    DATA_WAIT,
    TOKENS,
    SAMPLES,
    MFU,
    BUDGET_MEMORY,
    BUDGET_STEP,
    BUDGET_RUN,
    BUDGET_STEPS,
    PROJECTED_END,
    PROJECTED_RUN,
)
