"""One short line for a progress bar: memory, step time against plan, money."""

from __future__ import annotations

from trainbudget.engine.report import Report
from trainbudget.wording.numbers import duration, money


def status_line(report: Report) -> str:
    """`mem 48.9/79.2G, 0.95 s (plan 0.94), 0.73 of 2.02 USD`; unknown parts are left out."""
    parts = []
    for gpu in report.gpus[:1]:
        used = gpu.reading.memory_used_bytes if gpu.reading is not None else None
        if gpu.owned and used is not None:
            limit = f"/{gpu.limit_bytes / 2**30:.1f}G" if gpu.limit_bytes is not None else "G"
            parts.append(f"mem {used / 2**30:.1f}{limit}")
    step, budget = report.steps.step_time_s, report.budget.get("step_time_s")
    if step is not None:
        plan = f" ({'plan' if budget.source == 'plan' else budget.source} {duration(budget.value)})" if budget else ""
        parts.append(f"{duration(step)}{plan}")
    if report.cost is not None:
        allowed = report.budget.get("cost")
        of = f" of {money(allowed.value, report.currency)}" if allowed is not None else ""
        parts.append((money(report.cost, None) if of else money(report.cost, report.currency)) + of)
    if report.state == "stalled":
        parts.append("STALLED")
    return ", ".join(parts)
