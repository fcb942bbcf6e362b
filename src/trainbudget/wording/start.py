"""The lines a run starts with: what is watched, the budget, the price's source, where the record is, how to switch it off."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainbudget.events import BudgetFact, Gpu, Header, Price, value_of
from trainbudget.wording.numbers import duration, money, size


def start_lines(
    header: Header,
    gpus: Sequence[Gpu],
    mapping: Any,
    *,
    price: Price | None,
    directory: Path | None,
    url: str | None,
    plan: str | None = None,
) -> list[str]:
    """One paragraph of two lines; a third where something needs a word."""
    lines = [f"watching {_devices(header, gpus, mapping)} · {_budget(header.budget, plan)} · {_price(price)}"]
    record = f"record {_short(directory)}" if directory is not None else "no record"
    metrics = f"metrics {url}" if url is not None else "no metrics page"
    lines[0] += f"\n             {record} · {metrics} · off: TRAINBUDGET_DISABLED=1"
    if mapping is not None and getattr(mapping, "ambiguous", None):
        lines.append(f"which GPU is ours is not certain: {mapping.ambiguous}")
    return lines


def _devices(header: Header, gpus: Sequence[Gpu], mapping: Any) -> str:
    owned = [g for g in gpus if g.gpu in set(getattr(mapping, "owned", ()))]
    if owned:
        texts = [f"GPU {g.gpu} ({g.name or 'unknown card'}, {(g.uuid or '?')[:12]}…)" for g in owned[:4]]
        more = f" and {len(owned) - 4} more" if len(owned) > 4 else ""
        simulated = " [simulated device]" if header.backend == "mock" else ""
        return ", ".join(texts) + more + simulated
    error = header.backend_error
    reason = f" ({error.text or error.code})" if error is not None else ""
    return f"the CPU, no GPU data{reason}"


def _budget(budget: BudgetFact | None, plan: str | None) -> str:
    rest = f"from {plan}" if plan and plan != "auto" else "planned meanwhile" if plan else "learned from the first steps"
    if budget is None:
        return f"budget: {rest}"
    parts = []
    memory, step = value_of(budget.memory_peak_bytes), value_of(budget.step_time_s)
    run, cost = value_of(budget.run_time_s), value_of(budget.cost)
    if memory is not None:
        parts.append(size(memory))
    if step is not None:
        parts.append(f"{duration(step)}/step")
    if run is not None:
        parts.append(duration(run))
    if cost is not None:
        parts.append(money(cost, budget.currency))
    return f"budget {', '.join(parts)}" + (f" and {rest}" if plan else "") if parts else f"budget: {rest}"


def _price(price: Price | None) -> str:
    if price is None or price.per_gpu_hour is None:
        return "no price, so GPU-hours and no money (price='2.49 USD/h' sets one)"
    dated = f" {price.date}" if price.date and price.source != "given" else ""
    return f"{money(price.per_gpu_hour, price.currency)}/h {price.source or ''}{dated}".rstrip()


def _short(path: Path) -> str:
    try:
        relative = os.path.relpath(path)
    except ValueError:
        return str(path)
    return str(path) if relative.startswith("..") else relative
