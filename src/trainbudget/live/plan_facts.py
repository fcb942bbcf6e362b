"""A plan (`trainbudget plan --json`) as facts for the engine: budgets with intervals, peaks by phase, long batches."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainbudget.events import AnyEvent, Plan
from trainbudget.plan.live_facts import budget_fact, plan_fact, read_plan_json


def plan_facts(path: str | Path) -> list[AnyEvent]:
    """The facts of a plan file.

    Raises:
        ConfigError: unreadable or not a plan.
    """
    return facts_of_plan(read_plan_json(Path(path)))


def facts_of_plan(plan: Mapping[str, Any]) -> list[AnyEvent]:
    """The same from the parsed JSON."""
    future = plan_fact(plan)
    return [budget_fact(plan)] if future == Plan() else [budget_fact(plan), future]
