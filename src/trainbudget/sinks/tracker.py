"""A few numbers for the framework's own logger, so that every experiment tracker gets them for free."""

from __future__ import annotations

from trainbudget.engine.report import Report

PREFIX = "trainbudget/"


def tracker_values(report: Report) -> dict[str, float]:
    """`trainbudget/...` -> value; what is unknown is absent."""
    used = [g.reading.memory_used_bytes for g in report.gpus if g.owned and g.reading is not None]
    numbers = {
        "cost": report.cost,
        "wasted_cost": report.wasted_cost,
        "wasted_ratio": report.wasted_gpu_seconds / report.gpu_seconds if report.gpu_seconds else None,
        "projected_cost": report.projection.cost if report.projection is not None else None,
        "step_time_s": report.steps.step_time_s,
        "data_wait_ratio": report.data_wait_ratio,
        "memory_used_bytes": max((u for u in used if u is not None), default=None),
        "memory_headroom_bytes": min((g.headroom_bytes for g in report.gpus if g.headroom_bytes is not None), default=None),
        "findings_active": float(len(report.active)),
    }
    return {PREFIX + name: float(value) for name, value in numbers.items() if value is not None}
