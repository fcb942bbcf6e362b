"""Where GPU time and money went, and what is wrong: the ledger, waste, projection, findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from trainbudget.catalog.labels import UNKNOWN_CURRENCY
from trainbudget.catalog.spec import Kind, MetricSpec, Sample, Snapshot, Unit
from trainbudget.engine.report import Report
from trainbudget.findings import Severity

G, C = Kind.GAUGE, Kind.COUNTER


def _currency(report: Report) -> str:
    return report.currency or UNKNOWN_CURRENCY


def _money(report: Report, value: float | None) -> Iterable[Sample]:
    return (((_currency(report),), value),)


def _seconds(snapshot: Snapshot) -> Iterable[Sample]:
    return [((bucket,), line.gpu_seconds) for bucket, line in snapshot.report.ledger.items()]


def _wasted_seconds(snapshot: Snapshot) -> Iterable[Sample]:
    return [((bucket,), line.gpu_seconds) for bucket, line in snapshot.report.wasted_by.items()]


def _wasted_cost(snapshot: Snapshot) -> Iterable[Sample]:
    report = snapshot.report
    return [((_currency(report), bucket), line.cost) for bucket, line in report.wasted_by.items()]


def _price(snapshot: Snapshot) -> Iterable[Sample]:
    report = snapshot.report
    return _money(report, None if report.price is None else report.price.per_gpu_hour)


def _projected(snapshot: Snapshot) -> Iterable[Sample]:
    projection = snapshot.report.projection
    return _money(snapshot.report, None if projection is None else projection.cost)


def _budget_cost(snapshot: Snapshot) -> Iterable[Sample]:
    bound = snapshot.report.budget.get("cost")
    return _money(snapshot.report, None if bound is None else bound.value)


def _active(snapshot: Snapshot) -> Iterable[Sample]:
    """Counts of active findings, worst first; what was raised and has cleared stays as 0, so that its end can be seen."""
    found: dict[tuple[str, Severity], int] = {}
    for finding in snapshot.report.findings:
        key = (finding.code, Severity(finding.severity))
        found[key] = found.get(key, 0) + (finding.cleared_s is None)
    ordered = sorted(found.items(), key=lambda item: (not item[1], -item[0][1].level, item[0][0]))
    return [((code, severity.value), count) for (code, severity), count in ordered]


def _raised(snapshot: Snapshot) -> Iterable[Sample]:
    counts = Counter(finding.code for finding in snapshot.report.findings)
    return [((code,), count) for code, count in counts.most_common()]


COST = MetricSpec(
    stem="cost_total",
    kind=C,
    unit=Unit.MONEY,
    help="Money this process's charged GPUs have cost so far; sum over ranks for the job, never over currencies.",
    labels=("currency",),
    read=lambda s: _money(s.report, s.report.cost),
)
PRICE = MetricSpec(
    stem="gpu_price_per_hour",
    kind=G,
    unit=Unit.MONEY,
    help="Price of one GPU and hour; its source and date are on run_info.",
    labels=("currency",),
    read=_price,
)
PROJECTED_COST = MetricSpec(
    stem="projected_cost",
    kind=G,
    unit=Unit.MONEY,
    help="What the whole job will have cost at its end, at its recent pace.",
    labels=("currency",),
    read=_projected,
)
BUDGET_COST = MetricSpec(
    stem="budget_cost",
    kind=G,
    unit=Unit.MONEY,
    help="What the whole job may cost.",
    labels=("currency",),
    read=_budget_cost,
)
WASTED_COST = MetricSpec(
    stem="wasted_cost_total",
    kind=C,
    unit=Unit.MONEY,
    help="Money that bought nothing, by cause: waste buckets whole, evaluation and saving beyond their budget.",
    labels=("currency", "bucket"),
    read=_wasted_cost,
)
GPU_SECONDS = MetricSpec(
    stem="gpu_seconds_total",
    kind=C,
    unit=Unit.SECONDS,
    help="GPU-seconds booked, each in exactly one bucket.",
    labels=("bucket",),
    read=_seconds,
)
WASTED_SECONDS = MetricSpec(
    stem="wasted_gpu_seconds_total",
    kind=C,
    unit=Unit.SECONDS,
    help="GPU-seconds that bought nothing, by cause; known without a price too.",
    labels=("bucket",),
    read=_wasted_seconds,
)
PENDING = MetricSpec(
    stem="pending_gpu_seconds",
    kind=G,
    unit=Unit.SECONDS,
    help="GPU-seconds that are not booked yet: the open phase, or at most two minutes.",
    read=lambda s: (((), s.report.pending_gpu_seconds),),
)
FINDING_ACTIVE = MetricSpec(
    stem="finding_active",
    kind=G,
    unit=Unit.COUNT,
    help="Active findings of a code and severity; 0 once they have cleared.",
    labels=("code", "severity"),
    read=_active,
)
FINDINGS = MetricSpec(
    stem="findings_total",
    kind=C,
    unit=Unit.COUNT,
    help="Findings raised since the start, by code.",
    labels=("code",),
    read=_raised,
)

MONEY_METRICS = (
    COST,
    PRICE,
    PROJECTED_COST,
    BUDGET_COST,
    FINDING_ACTIVE,
    GPU_SECONDS,
    WASTED_SECONDS,
    WASTED_COST,
    PENDING,
)
