"""A plan (the object `plan --json` prints) as the facts a live run is measured against."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainbudget import events
from trainbudget.errors import ConfigError


def read_plan_json(path: Path) -> dict[str, Any]:
    """The plan in a file that `trainbudget plan --json > FILE` wrote.

    Raises:
        ConfigError: unreadable, or not a plan.
    """
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"plan {path}: {error}") from None
    if not isinstance(plan, dict) or "memory" not in plan:
        raise ConfigError(f"plan {path}: not a plan; write one with `trainbudget plan ... --json > {path.name}`")
    return plan


def budget_fact(plan: Mapping[str, Any], *, source: str = "plan") -> events.BudgetFact:
    """What the run may need, by this plan; keys that the plan does not know are absent."""
    device, cost, spans = (plan.get("memory") or {}).get("device_bytes"), plan.get("cost"), plan.get("intervals") or {}

    def bound(part: Mapping[str, Any] | None) -> events.Number:
        if part is None or part.get("value") is None:
            return None
        return events.Bound(value=part["value"], low=part.get("low"), high=part.get("high"), source=source)

    def number(key: str) -> events.Number:
        return None if plan.get(key) is None else events.Bound(value=float(plan[key]), source=source)

    return events.BudgetFact(
        memory_peak_bytes=bound(device),
        step_time_s=bound(spans.get("step_time_s")) or number("step_time_s"),
        run_time_s=bound(spans.get("run_time_s")) or number("run_time_s"),
        cost=bound(cost),
        currency=cost.get("currency") if cost else None,
        tokens_per_s=number("tokens_per_s"),
        steps_total=number("steps"),
        flops_per_step=number("flops_per_step"),
        optimizer_state_bytes=_optimizer_state(plan, source),
        source=source,
    )


def _optimizer_state(plan: Mapping[str, Any], source: str) -> events.Number:
    """What the first optimizer step will add, where the peak of the plan contains it."""
    size = ((plan.get("memory") or {}).get("categories") or {}).get("optimizer_state")
    return None if not size else events.Bound(value=float(size), source=source)


def plan_fact(plan: Mapping[str, Any]) -> events.Plan:
    """What the plan knows of the future: the peak of each phase, the longest batches, and the peak at their lengths."""
    longest = [events.LongBatch(step=b["step"], tokens=float(b["tokens"])) for b in plan.get("longest_batches") or []]
    memory = plan.get("memory") or {}
    phases = {_PHASES.get(name, name): float(size) for name, size in (memory.get("peak_by_phase") or {}).items()}
    peaks = _peaks(plan, longest) if longest else []
    return events.Plan(peak_by_tokens=peaks or None, longest=longest or None, phase_peaks=phases or None)


#: A plan's phases that a live run calls otherwise.
_PHASES = {"evaluation": "eval"}


def _peaks(plan: Mapping[str, Any], longest: list[events.LongBatch]) -> list[list[float]]:
    """[[tokens, bytes, low, high]]: what the allocator holds. An older plan knows the longest batch's peak alone."""
    rows = [[float(p["tokens"]), float(p["value"]), float(p["low"]), float(p["high"])] for p in plan.get("peak_by_tokens") or []]
    reserved = (plan.get("memory") or {}).get("reserved_bytes")
    if rows or not reserved:
        return rows
    return [[max(b.tokens for b in longest), float(reserved["value"]), float(reserved["low"]), float(reserved["high"])]]
