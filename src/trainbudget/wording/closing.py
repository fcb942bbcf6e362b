"""The end of a run on one screen: what it cost, where the time went, memory, what to do next."""

from __future__ import annotations

import textwrap

from trainbudget.engine.ledger import BUCKETS
from trainbudget.engine.report import LedgerLine, Report
from trainbudget.wording.finding import WIDTH, advice_text
from trainbudget.wording.numbers import count, duration, money, percent, signed_percent, size

#: Bucket -> (class, name in plain words), in the order shown.
BUCKET_WORDS = {
    "compute": ("useful", "compute"),
    "eval": ("useful", "evaluation"),
    "startup": ("overhead", "start-up"),
    "warmup": ("overhead", "warm-up"),
    "communication": ("overhead", "communication"),
    "save": ("overhead", "saving"),
    "log": ("overhead", "logging"),
    "data_wait": ("waste", "waiting for data"),
    "host_gap": ("waste", "GPU idle inside steps"),
    "padding": ("waste", "computing on padding"),
    "optimizer_offload": ("waste", "optimizer on the CPU"),
    "idle": ("waste", "held without work"),
    "stall": ("waste", "stalled"),
    "lost": ("waste", "work lost or repeated"),
    "other": ("waste", "between steps, unexplained"),
}
#: Below this share of the total a line only makes the table longer.
_SMALL_RATIO = 0.0005
#: From here on waste is worth a line of its own: the share at which `input_bound` speaks up.
_WORTH_A_LINE_RATIO = 0.10
#: Findings look at windows of this many steps.
_ENOUGH_STEPS = 100
#: More changes at once tell nobody which of them helped.
_MOST_NEXT = 3


def verdict(report: Report) -> str:
    """`NAME finished: 5,000 steps in 1 h 24 min · 2.09 of 2.02 USD planned (+3 %) · 0.27 USD wasted`."""
    name = report.header.run or "run"
    steps = report.steps.done
    done = f"{count(steps)} steps in {duration(report.wall_s)}" if steps else f"no step was seen in {duration(report.wall_s)}"
    parts = [f"{name} {report.outcome or report.state}: {done}"]
    if report.cost is not None:
        budget = report.budget.get("cost")
        text = money(report.cost, report.currency)
        if budget is not None and budget.value > 0:
            ratio = report.cost / budget.value
            far = _of_allowed(ratio) if budget.source == "given" else signed_percent(ratio - 1.0)
            text = f"{money(report.cost, None)} of {money(budget.value, report.currency)} {_planned(budget.source)} ({far})"
        parts.append(text)
    else:
        parts.append(f"{report.gpu_seconds / 3600:.3g} GPU-hours, no price")
    if not steps:
        return " · ".join(parts)  # without steps nobody knows what was waste
    if report.wasted_cost is not None:
        parts.append(f"{money(report.wasted_cost, report.currency)} wasted")
    elif report.gpu_seconds:
        parts.append(f"{percent(report.wasted_gpu_seconds / report.gpu_seconds)} wasted")
    return " · ".join(parts)


def closing_table(report: Report) -> str:
    """The verdict, the ledger by class, memory, and the next change, as plain text."""
    currency = report.currency if report.price is not None else None
    money_head = f"{currency or 'cost':>10}" if report.price is not None else ""
    per_gpu = "GPU time" if report.gpus else "time (no GPU: the CPU stands in)"
    lines = [verdict(report), "", f"  {f'where the {per_gpu} went':<40}{'min':>8}{money_head}{'share':>9}"]
    digits = _digits(report.cost)
    last_class = None
    for bucket in sorted(report.ledger, key=_order):
        line = report.ledger[bucket]
        if line.ratio < _SMALL_RATIO:
            continue
        kind, words = BUCKET_WORDS.get(bucket, ("waste", bucket))
        lines.append(_ledger_line("" if kind == last_class else kind, words, line, digits=digits))
        last_class = kind
    total = LedgerLine(gpu_seconds=report.gpu_seconds, ratio=1.0, cost=report.cost)
    lines.append(_ledger_line("total", "", total, digits=digits))
    lines.append("")
    lines += _memory_lines(report) + (_next_lines(report) or _waste_lines(report))
    if not report.steps.done:
        lines.append("  note      no step was seen: a callback, or Monitor.step() in the loop, shows where the time goes")
    if report.wait_assumed:
        lines.append("  note      waiting for data is counted whole: how much of it the GPU was busy is unknown")
    lines += [f"  unknown   {text}" for text in report.missing if not text.startswith("price") or report.gpus]
    return "\n".join(lines).rstrip()


def _ledger_line(kind: str, words: str, line: LedgerLine, *, digits: int | None) -> str:
    cost = "" if digits is None else f"{line.cost:>10.{digits}f}" if line.cost is not None else f"{'unknown':>10}"
    return f"  {kind:<10}{words:<30}{line.gpu_seconds / 60:>8.2f}{cost}{percent(line.ratio):>9}"


def _digits(total: float | None) -> int | None:
    """Decimals of the money column: enough to tell hundredths of the whole apart, the same for every line."""
    if total is None:
        return None
    return 2 if total >= 10 else 3 if total >= 1 else 4 if total >= 0.1 else 5


def _memory_lines(report: Report) -> list[str]:
    out: list[str] = []
    budget = report.budget.get("memory_peak_bytes")
    for gpu in report.gpus:
        if not gpu.charged or gpu.peak_used_bytes is None:
            continue
        plan = f" ({_planned(budget.source)} {size(budget.value)})" if budget is not None else ""
        head = f", head-room {size(gpu.headroom_bytes)}" if gpu.headroom_bytes is not None else ""
        simulated = " · simulated device" if report.header.backend == "mock" else ""
        label = "memory" if not out else ""
        out.append(
            f"  {label:<10}GPU {gpu.info.gpu}: peak {size(gpu.peak_used_bytes)}{plan} of {size(gpu.limit_bytes)}{head}{simulated}"
        )
    return out


def _next_lines(report: Report) -> list[str]:
    out: list[str] = []
    said: set[str] = set()
    for finding in sorted(report.findings, key=lambda f: -f.severity.level):
        for advice in finding.advice[:1]:
            if advice.setting in said or len(said) == _MOST_NEXT:
                continue
            text = f"{advice_text(advice, report.currency)} [{finding.name}]"
            out += textwrap.wrap(
                text,
                WIDTH,
                initial_indent=f"  {'' if said else 'next':<10}",
                subsequent_indent=" " * 14,
                break_long_words=False,
                break_on_hyphens=False,
            )
            said.add(advice.setting)
    return out


def _waste_lines(report: Report) -> list[str]:
    """The largest waste of a run that nothing could be advised for: short ones end before anything is certain."""
    wasted = {b: line for b, line in report.ledger.items() if BUCKET_WORDS.get(b, ("waste", b))[0] == "waste"}
    bucket = max(wasted, key=lambda b: wasted[b].gpu_seconds, default=None)
    steps = report.steps.done
    if bucket is None or not steps or wasted[bucket].ratio < _WORTH_A_LINE_RATIO:
        return []
    each = ""
    if bucket == "data_wait":
        gpus = report.gpu_seconds / report.wall_s if report.wall_s else 1.0
        each = f" ({duration(wasted[bucket].gpu_seconds / gpus / steps)} before each step)"
    why = f"; {count(steps)} steps are too few to say why and what to change" if steps < _ENOUGH_STEPS else ""
    text = f"{BUCKET_WORDS.get(bucket, ('', bucket))[1]}: {percent(wasted[bucket].ratio)} of the run{each}{why}"
    return textwrap.wrap(text, WIDTH, initial_indent=f"  {'mostly':<10}", subsequent_indent=" " * 12)


def _of_allowed(ratio: float) -> str:
    """`58 % used`, `69 % over`: what was allowed is no forecast that could be met."""
    return f"{percent(ratio - 1.0)} over" if ratio >= 1.005 else f"{percent(ratio)} used"


def _planned(source: str | None) -> str:
    return {"given": "allowed", "learned": "learned"}.get(source or "", "planned")


def _order(bucket: str) -> int:
    order = list(BUCKET_WORDS)
    return order.index(bucket) if bucket in order else len(order) + (BUCKETS.index(bucket) if bucket in BUCKETS else 99)
