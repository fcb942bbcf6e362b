"""The single place where metrics, recording rules and alerts are declared; everything else is rendered from it."""

from __future__ import annotations

from trainbudget.catalog.gpu_metrics import GPU_METRICS, SAMPLE_AGE
from trainbudget.catalog.labels import clean, rank_label, run_label
from trainbudget.catalog.money_metrics import FINDINGS, MONEY_METRICS
from trainbudget.catalog.run_metrics import RUN_METRICS, STEP_SECONDS
from trainbudget.catalog.self_metrics import HOST_METRICS, SCRAPE_METRICS, SELF_METRICS
from trainbudget.catalog.spec import PREFIX, Histogram, Kind, MetricSpec, Snapshot, Unit

#: All metrics, most important first: where a process would exceed its number of series, the last ones go.
METRICS: tuple[MetricSpec, ...] = (
    *SCRAPE_METRICS,
    SAMPLE_AGE,
    *RUN_METRICS,
    *MONEY_METRICS,
    *GPU_METRICS,
    *SELF_METRICS,
    STEP_SECONDS,
    FINDINGS,
    *HOST_METRICS,
)


def most_series(gpus: int) -> int:
    """The most series one process may have (contract)."""
    return 80 + 40 * gpus


__all__ = [
    "METRICS",
    "PREFIX",
    "Histogram",
    "Kind",
    "MetricSpec",
    "Snapshot",
    "Unit",
    "clean",
    "most_series",
    "rank_label",
    "run_label",
]
