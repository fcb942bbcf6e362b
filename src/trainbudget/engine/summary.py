"""`Report` -> plain JSON values: what `summary.json`, `replay --json`, `demo --json` and the report page hold."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from trainbudget.engine.report import Report
from trainbudget.findings import Finding

SUMMARY_SCHEMA = "trainbudget.summary/1"


def ledger_json(report: Report) -> dict[str, dict[str, float | None]]:
    """`{bucket: {"gpu_seconds", "ratio", "cost"}}`; cost is null without a price."""
    return {
        bucket: {"gpu_seconds": line.gpu_seconds, "ratio": line.ratio, "cost": line.cost}
        for bucket, line in report.ledger.items()
    }


def finding_json(finding: Finding) -> dict[str, Any]:
    """One finding with every key of the contract present, unknown ones null."""
    out: dict[str, Any] = msgspec.to_builtins(finding)
    forecast = finding.forecast
    out["forecast"] = (
        None
        if forecast is None
        else {"at_s": forecast.at_s, "at_step": forecast.at_step, "low": forecast.low, "high": forecast.high}
    )
    if finding.forecast_latest is None:
        out.pop("forecast_latest", None)
    return finite(out)  # type: ignore[no-any-return]


def findings_json(report: Report) -> list[dict[str, Any]]:
    return [finding_json(f) for f in report.findings]


def summary_json(report: Report) -> dict[str, Any]:
    """The job's summary, keys as in the contract; unknown is null."""
    header, steps = report.header, report.steps
    useful = steps.useful_tokens if steps.useful_tokens is not None else steps.tokens
    per_million = report.cost / (useful / 1e6) if report.cost is not None and useful else None
    summary = {
        "schema": SUMMARY_SCHEMA,
        "run": header.run,
        "id": header.id,
        "framework": header.framework,
        "backend": header.backend,
        "outcome": report.outcome,
        "state": report.state,
        "started_at": header.started_at,
        "steps": steps.last,
        "steps_total": steps.total,
        "step_time_s": steps.step_time_s,
        "tokens_per_s": steps.tokens_per_s,
        "model_flops_utilization_ratio": steps.model_flops_utilization_ratio,
        "wall_s": report.wall_s,
        "gaps_s": report.gaps_s,
        "gpu_seconds": report.gpu_seconds,
        "pending_gpu_seconds": report.pending_gpu_seconds,
        "charged_gpus": report.charged_gpus,
        "cost": report.cost,
        "wasted_cost": report.wasted_cost,
        "wasted_gpu_seconds": report.wasted_gpu_seconds,
        "currency": report.currency,
        "price": msgspec.to_builtins(report.price) if report.price is not None else None,
        "tokens": steps.tokens,
        "useful_tokens": steps.useful_tokens,
        "cost_per_million_useful_tokens": per_million,
        "memory": _memory(report),
        "budget": {name: msgspec.to_builtins(bound) for name, bound in report.budget.items()},
        "projection": _projection(report),
        "ledger": ledger_json(report),
        "findings": findings_json(report),
        "settings": header.settings or {},
        "environment": header.environment or {},
        "missing": list(report.missing),
    }
    return finite(summary)  # type: ignore[no-any-return]


def replay_json(report: Report) -> dict[str, Any]:
    """What `replay --json` prints."""
    summary = summary_json(report)
    findings = summary.pop("findings")
    ledger = summary.pop("ledger")
    return {"run": report.header.run, "findings": findings, "ledger": ledger, "summary": summary}


def _memory(report: Report) -> list[dict[str, Any]]:
    return [
        {
            "gpu": g.info.gpu,
            "uuid": g.info.uuid,
            "name": g.info.name,
            "limit_bytes": g.limit_bytes,
            "peak_allocated_bytes": g.peak_allocated_bytes,
            "peak_reserved_bytes": g.peak_reserved_bytes,
            "peak_used_bytes": g.peak_used_bytes,
            "headroom_bytes": g.headroom_bytes,
        }
        for g in report.gpus
        if g.charged
    ]


def _projection(report: Report) -> dict[str, Any] | None:
    projection = report.projection
    if projection is None:
        return None
    return {
        "run_time_s": projection.run_time_s,
        "run_time_low_s": projection.run_time_low_s,
        "run_time_high_s": projection.run_time_high_s,
        "cost": projection.cost,
        "cost_low": projection.cost_low,
        "cost_high": projection.cost_high,
    }


def finite(value: Any) -> Any:
    """A copy in which non-finite numbers are null: JSON has none."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(k): finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(v) for v in value]
    return value
