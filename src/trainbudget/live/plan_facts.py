"""A plan on disk (`trainbudget plan --json`) as facts for the engine: budgets with intervals, peaks by phase."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trainbudget.errors import ConfigError
from trainbudget.events import AnyEvent, Bound, BudgetFact, LongBatch, Plan


def plan_facts(path: str | Path) -> list[AnyEvent]:
    """The facts of a plan file.

    Raises:
        ConfigError: unreadable or not a plan.
    """
    try:
        plan = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise ConfigError(f"plan {path}: {err}") from None
    if not isinstance(plan, dict) or "memory" not in plan:
        raise ConfigError(f"plan {path}: not the output of `trainbudget plan --json`")
    return facts_of_plan(plan)


def facts_of_plan(plan: dict[str, Any]) -> list[AnyEvent]:
    """The same from the parsed JSON. Numbers with an interval are preferred to plain ones."""
    memory, cost, intervals = plan.get("memory") or {}, plan.get("cost") or {}, plan.get("intervals") or {}
    peaks = memory.get("peak_by_phase")
    facts: list[AnyEvent] = [
        BudgetFact(
            memory_peak_bytes=_bound(memory.get("device_bytes")),
            step_time_s=_bound(intervals.get("step_time_s")) or _bound(plan.get("step_time_s")),
            run_time_s=_bound(intervals.get("run_time_s")) or _bound(plan.get("run_time_s")),
            cost=_bound(cost),
            currency=cost.get("currency"),
            tokens_per_s=_bound(plan.get("tokens_per_s")),
            flops_per_step=_bound(plan.get("flops_per_step")),
            steps_total=_bound(plan.get("steps")),
            source="plan",
        )
    ]
    longest = [LongBatch(step=int(b["step"]), tokens=float(b["tokens"])) for b in plan.get("longest_batches") or ()]
    by_tokens = plan.get("peak_by_tokens")
    if peaks or longest or by_tokens:
        facts.append(Plan(phase_peaks=peaks or None, longest=longest or None, peak_by_tokens=by_tokens))
    return facts


def _bound(value: Any) -> Bound | None:
    if isinstance(value, dict):
        if not isinstance(value.get("value"), (int, float)):
            return None
        return Bound(value=float(value["value"]), low=value.get("low"), high=value.get("high"), source="plan")
    return Bound(value=float(value), source="plan") if isinstance(value, (int, float)) else None
