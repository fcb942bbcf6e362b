"""The plan as a person reads it: what fills the memory, whether it fits, time, money, what to change. Plain text."""

from __future__ import annotations

from collections.abc import Sequence

from trainbudget.plan.answer import Plan
from trainbudget.plan.step_time import Estimate

GIB = 1024**3
_EIGHTHS = " ▏▎▍▌▋▊▉"
_LABELS = {
    "optimizer_state": "optimizer state",
    "logits": "logits, loss",
    "temporaries": "temporaries",
    "workspace": "kernel workspace",
    "communication": "communication",
}
#: Peaks below this are shown in MiB.
_IN_GIB = 8 * GIB


def render_plan(plan: Plan, *, width: int = 100, unicode: bool = True, batches: bool = False) -> str:
    """One plan, at most `width` columns; `batches` adds the longest batches of the data set."""
    width = max(60, min(width, 110))
    lines = [*_wrapped(headline(plan), width), ""]
    lines += _memory(plan, width, unicode)
    lines += ["", *_time_and_money(plan)]
    rest = _largest(plan)
    if rest:
        lines += ["", *rest]
    lines += _changes(plan, width)
    if batches:
        known = plan.facts.long_batches if plan.facts is not None else []
        told = [f"{'some step' if s is None else f'step {s:,}'}: {t:,} tokens" for s, t in known] or [
            "not known: the data set is not tokenised, or has no length"
        ]
        lines += _bullets("longest batches", told, width)
    lines += _bullets("assumed or not modelled", list(plan.not_understood), width)
    text = "\n".join(lines) + "\n"
    return text if unicode else _ascii(text)


def render_comparison(plans: Sequence[tuple[str, Plan | str]], *, width: int = 100, unicode: bool = True) -> str:
    """Cards side by side, cheapest to finish first; a card that cannot be planned keeps its reason."""
    rows = [("card", "memory", "limit", "fits", "step", "run", "cost to finish")]
    for name, plan in sorted(plans, key=lambda pair: _rank(pair[1])):
        if isinstance(plan, str):
            rows.append((name, plan, "", "", "", "", ""))
            continue
        cost = plan.run.cost if plan.run and plan.fits is not False else None
        currency = plan.price.currency if plan.price else ""
        hours = f"{plan.run.gpu_hours:,.1f} GPU-hours, no dated price" if plan.run and plan.fits is not False else "-"
        rows.append(
            (
                name,
                f"{plan.memory.device.value / GIB:.1f} GiB",
                "-" if plan.limit_bytes is None else f"{plan.limit_bytes / GIB:.1f}",
                _verdict(plan.fits),
                "-" if plan.step is None else seconds(plan.step.step.value),
                "-" if plan.run is None else span(plan.run.run.value),
                hours if cost is None else f"{money(cost.value)} {currency} ({money(cost.low)} - {money(cost.high)})",
            )
        )
    widths = [max(len(r[i]) for r in rows if r[2] or r is rows[0]) for i in range(7)]
    right = (1, 2, 4, 5)
    lines = []
    for r in rows:
        if not r[2]:
            lines.append(f"  {r[0].ljust(widths[0])}  {r[1]}"[:width])
            continue
        cells = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(r, widths, strict=True))]
        lines.append(("  " + "  ".join(cells)).rstrip())
    text = "\n".join(lines) + "\n"
    return text if unicode else _ascii(text)


def _rank(plan: Plan | str) -> tuple[int, float]:
    if isinstance(plan, str):
        return 3, 0.0
    if plan.fits is False:
        return 2, 0.0
    cost = plan.run.cost.value if plan.run and plan.run.cost else None
    return (1, plan.run.gpu_hours if plan.run else 0.0) if cost is None else (0, cost)


def headline(plan: Plan) -> str:
    """Model, method, precision, shape, optimizer, card."""
    spec = plan.request.spec
    accumulation = f" x {spec.gradient_accumulation} accumulated" if spec.gradient_accumulation > 1 else ""
    shape = (
        f"batch {spec.micro_batch}"
        if spec.task == "image_classification"
        else f"{spec.micro_batch} x {spec.sequence_length:,} tokens"
    )
    parts = [plan.title, spec.precision, shape + accumulation, spec.optimizer]
    if spec.activation_checkpointing is not None:
        parts.append("checkpointing")
    parts.append(f"{plan.request.gpu.name} x {plan.request.count}" + (f" ({spec.strategy})" if spec.strategy != "none" else ""))
    return " · ".join(p for p in parts if p)


def _memory(plan: Plan, width: int, unicode: bool) -> list[str]:
    memory, limit = plan.memory, plan.limit_bytes
    left = f"  memory at the peak ({memory.peak_phase})" if memory.peak_phase else "  memory at the peak"
    right = "" if limit is None else f"limit {limit / GIB:.1f} GiB"
    lines = [left + right.rjust(max(1, width - len(left)))]
    rows = [(_LABELS.get(name, name), size) for name, size in memory.categories.items() if size > 0]
    rows.append(("reserved, unused", max(0, memory.reserved.value - sum(s for _, s in rows))))
    rows.append(("CUDA context", memory.device.value - memory.reserved.value))
    unit, name = (GIB, "GiB") if memory.device.value >= _IN_GIB else (1024**2, "MiB")
    least = unit // 10 if unit == GIB else unit  # what would show as 0.0, or hardly, is put together
    small = sum(size for _, size in rows if size < least)
    rows = [r for r in rows if r[1] >= least]
    if small >= unit // 20:
        rows.append(("other", small))
    top = max((s for _, s in rows), default=1)
    space = width - 34
    for label, size in rows:
        lines.append(f"  {label:<18}{size / unit:>8.1f} {name}  {_bar(size / top, space, unicode)}".rstrip())
    lines.append("  " + ("─" if unicode else "-") * (width - 2))
    interval = f"({memory.device.low / unit:.1f} - {memory.device.high / unit:.1f}, 90 %)"
    verdict = _verdict(plan.fits)
    if limit is not None:
        room = limit - memory.device.value
        distance = f"{abs(room) / GIB:.1f} GiB" if abs(room) >= GIB else f"{abs(room) / 1024**2:.0f} MiB"
        verdict = f"{'head-room' if room >= 0 else 'short by'} {distance} · {verdict}"
    device = f"  {'device':<18}{memory.device.value / unit:>8.1f} {name}  {interval}"
    if len(device) + 2 + len(verdict) <= width:
        lines.append(device + verdict.rjust(width - len(device)))
    else:  # a narrow terminal: the verdict gets a line of its own
        lines += [device, verdict.rjust(width)]
    return lines


def _bar(share: float, space: int, unicode: bool) -> str:
    eighths = round(share * min(space, 48) * 8)
    if not unicode:
        return "#" * max(1, eighths // 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip() or "▏"


def _verdict(fits: bool | None) -> str:
    return {True: "fits", False: "does not fit", None: "too close to call"}[fits]


def _time_and_money(plan: Plan) -> list[str]:
    step, run = plan.step, plan.run
    if step is None:
        return ["  formulas, not a trace: no step time, no run time, no cost"]
    mfu = "" if step.mfu is None else f"   MFU {100 * step.mfu:.2g} %"
    rate = "" if step.tokens_per_s is None else f"   {step.tokens_per_s:,.0f} tokens/s"
    lines = [f"  step   {seconds(step.step.value)} {_interval(step.step, seconds)}{rate}{mfu}   [{step.step.source}]"]
    if run is None:
        lines.append("  run    length not given: --steps, --tokens, or --epochs with --samples")
    else:
        parts = [f"{text} {span(s)}" for text, s in (("evaluation", run.eval_s), ("saving", run.save_s)) if s >= 1]
        extra = f", of it {' and '.join(parts)}" if parts else ""
        lines.append(
            f"  run    {span(run.run.value)} {_interval(run.run, span)}   {run.steps:,} steps{extra}; start-up not counted"
        )
    lines.append(_cost_line(plan))
    if plan.price_hint:
        lines.append(f"         {plan.price_hint}")
    if run is not None and run.preprocess_cost is not None:
        lines.append(
            f"  before {money(run.preprocess_cost.value)} USD of preprocessing, plain machine   [{run.preprocess_cost.source}]"
        )
    return lines


def _cost_line(plan: Plan) -> str:
    run, price = plan.run, plan.price
    if price is None:
        hours = "" if run is None else f"{run.gpu_hours:,.1f} GPU-hours; "
        return f"  cost   {hours}no dated price for {plan.request.gpu.name}: give --price '2.49 USD/h'"
    per_hour = f"{money(price.per_gpu_hour)} {price.currency}/h a GPU"
    if price.low < price.high:
        per_hour += f" ({money(price.low)} - {money(price.high)})"
    notes = [
        price.source,
        *([price.date] if price.date else []),
        *(["spot"] if price.spot else []),
        *([price.note] if price.note else []),
    ]
    source = f"[{', '.join(notes)}]"
    if run is None or run.cost is None:
        return f"  price  {per_hour}   {source}"
    return f"  cost   {money(run.cost.value)} {price.currency} {_interval(run.cost, money)} at {per_hour}   {source}"


def _interval(estimate: Estimate, form: object) -> str:
    return f"({form(estimate.low)} - {form(estimate.high)})"  # type: ignore[operator]


def _largest(plan: Plan) -> list[str]:
    spec, parts = plan.request.spec, []
    if plan.max_micro_batch is not None:
        at = "" if spec.task == "image_classification" else f" at {spec.sequence_length:,} tokens"
        parts.append(f"largest micro-batch{at}: {plan.max_micro_batch or 'not even 1 fits'}")
    if plan.max_sequence_length is not None:
        parts.append(
            f"longest sequence at batch {spec.micro_batch}: {plan.max_sequence_length or 64:,}"
            if plan.max_sequence_length
            else ""
        )
    text = "     ".join(p for p in parts if p)
    return [f"  {text}"] if text else []


def _changes(plan: Plan, width: int) -> list[str]:
    if plan.fits is not False and not plan.changes:
        return []
    if not plan.changes:
        if plan.step is None:
            return []
        tried = "nothing tried makes it fit" if plan.searched else "no change was tried (--no-search)"
        return ["", f"  {tried}: see --gpus for other cards"]
    lines = ["", "  to make it fit, fastest first (each predicted again):"]
    for change in plan.changes:
        device = change.memory.device
        numbers = f"{device.value / GIB:.1f} GiB, step {seconds(change.step.step.value)}"
        lines.append(f"    {change.setting:<{max(1, width - len(numbers) - 6)}}  {numbers}")
    return lines


def _bullets(title: str, items: list[str], width: int) -> list[str]:
    if not items:
        return []
    lines: list[str] = []
    for i, item in enumerate(items):
        first = f"  {title}: " if i == 0 else " " * (len(title) + 4)
        lines.extend(_wrapped(first + item, width, indent=len(title) + 4))
    return ["", *lines]


def _wrapped(text: str, width: int, indent: int = 2) -> list[str]:
    import textwrap

    return textwrap.wrap(text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False) or [text]


def seconds(value: float) -> str:
    """A step time: `0.94 s`, `38 ms`."""
    return f"{1000 * value:.3g} ms" if value < 0.1 else f"{value:.3g} s" if value < 100 else span(value)


def span(value: float) -> str:
    """A duration: `41 s`, `2 min 30 s`, `12 min`, `1 h 21 min`, `3 d 4 h`."""
    if value < 90:
        return f"{value:.0f} s" if value >= 10 else f"{value:.2g} s"
    if value < 300:
        return f"{round(value) // 60} min {round(value) % 60:02d} s"
    minutes = round(value / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    return f"{hours // 24} d {hours % 24} h"


def money(value: float) -> str:
    """An amount: two decimals, more below a cent."""
    return f"{value:,.2f}" if value >= 0.095 or value == 0 else f"{value:.2g}"


def _ascii(text: str) -> str:
    return text.replace("·", "|").replace("─", "-").encode("ascii", "replace").decode("ascii")
