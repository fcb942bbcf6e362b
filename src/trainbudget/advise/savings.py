"""How much a change can save at most: the part of the ledger's buckets it attacks, over the whole run where its end is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainbudget.catalog.levers import Lever
from trainbudget.engine.report import Report
from trainbudget.findings import Finding

#: Finding -> the buckets in which its time lies, where that is narrower or other than what the lever attacks in general.
BUCKETS: dict[str, tuple[str, ...]] = {
    "input_bound": ("data_wait",),
    "epoch_start_overhead": ("data_wait", "other"),
    "padding_waste": ("padding",),
    "eval_share": ("eval",),
    "save_share": ("save",),
    "log_share": ("log",),
    "gc_pause": ("host_gap",),
    "launch_bound": ("host_gap",),
    "communication_bound": ("communication",),
    "optimizer_offload": ("optimizer_offload", "host_gap"),
    "needless_offload": ("optimizer_offload", "host_gap"),
    "unused_gpu": ("idle",),
    "gpu_idle": ("idle", "stall"),
    "notebook_idle": ("idle",),
    "finished_holding_gpu": ("idle",),
    "naive_model_parallel": ("compute", "idle", "host_gap"),
    "slow_start": ("startup",),
    "no_first_step": ("startup",),
    "recompile": ("warmup",),
    "hang": ("stall",),
    "collective_hang": ("stall",),
    "gpu_lost": ("stall",),
    "oom": ("lost",),
}


#: What happens once: the run's end brings no more of it.
ONCE = frozenset({"oom", "hang", "collective_hang", "gpu_lost", "no_first_step", "slow_start"})
#: Findings that are not about time: a full disk or a missing checkpoint costs none until it happens.
NO_TIME = frozenset({"disk_forecast", "unsaved_work", "oom_next_phase", "oom_predicted", "oom_forecast"})


def _one_minus(name: str) -> Callable[[Finding], float | None]:
    def share(finding: Finding) -> float | None:
        value = finding.evidence.get(name)
        return None if not isinstance(value, (int, float)) else 1.0 - float(value)

    return share


def _over_budget(finding: Finding) -> float | None:
    over = finding.evidence.get("over_ratio")
    return None if not isinstance(over, (int, float)) else float(over) / (1.0 + float(over))


def _optimizer(finding: Finding) -> float | None:
    # A fused AdamW alone is 2.75 times as fast as an unfused one (deepmd-kit#4463).
    ratio = finding.evidence.get("optimizer_ratio")
    return None if not isinstance(ratio, (int, float)) else float(ratio) * (1.0 - 1.0 / 2.75)


#: Findings whose evidence says which part of the compute is lost.
PARTS: dict[str, Callable[[Finding], float | None]] = {
    "busy_but_slow": _one_minus("throughput_ratio"),
    "step_over_budget": _over_budget,
    "scaling_inefficient": _one_minus("efficiency_ratio"),
    "slow_kernel_path/optimizer": _optimizer,
}


def saving_of(finding: Finding, lever: Lever, report: Report) -> dict[str, Any]:
    """`{"time_s", "cost", "currency", "gpu_seconds", "ratio", "scope"}`: each "at most"; empty where nothing is known.

    `scope` is `run` (whole run, projected) or `so_far`. A bound is never larger than the buckets it comes from hold, or
    will hold at the run's end when they grow as they did so far.
    """
    if finding.code == "nothing_learned":
        return _rest_of_run(report)
    if finding.code in NO_TIME:
        return {}
    buckets = BUCKETS.get(finding.code, lever.buckets)
    part = _part(finding, lever)
    if part is None or part <= 0.0:
        return {}
    booked = sum(report.ledger[b].gpu_seconds for b in buckets if b in report.ledger)
    if booked <= 0.0 or report.gpu_seconds <= 0.0:
        return {}
    scale, scope = (1.0, "so_far") if finding.code in ONCE else _to_the_end(report)
    return _saving(part * booked * scale, scope, report, ratio=part * booked / report.gpu_seconds)


def _part(finding: Finding, lever: Lever) -> float | None:
    measured = PARTS.get(finding.name) or PARTS.get(finding.code)
    if measured is not None:
        value = measured(finding)
        return None if value is None else min(1.0, value)
    if finding.code in BUCKETS:
        return 1.0 if lever.share is None else lever.share
    return lever.share


def _to_the_end(report: Report) -> tuple[float, str]:
    """By how much buckets will have grown when the run ends at its pace, 1 where that is not known."""
    projection = report.projection
    if projection is None or report.wall_s <= 0.0 or projection.run_time_s <= report.wall_s:
        return 1.0, "so_far"
    return projection.run_time_s / report.wall_s, "run"


def _rest_of_run(report: Report) -> dict[str, Any]:
    projection = report.projection
    if projection is None or projection.run_time_s <= report.wall_s:
        return {}
    rest = (projection.run_time_s - report.wall_s) * report.charged_gpus
    return _saving(rest, "run", report, ratio=rest / (projection.run_time_s * report.charged_gpus))


def _saving(gpu_seconds: float, scope: str, report: Report, *, ratio: float) -> dict[str, Any]:
    saving: dict[str, Any] = {
        "time_s": round(gpu_seconds / max(1, report.charged_gpus), 3),
        "gpu_seconds": round(gpu_seconds, 3),
        "ratio": round(ratio, 4),
        "scope": scope,
    }
    price = report.price
    if price is not None and price.per_gpu_hour is not None:
        saving["cost"] = round(gpu_seconds * price.per_gpu_hour / 3600.0, 6)
        saving["currency"] = price.currency
    return saving
