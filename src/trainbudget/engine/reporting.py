"""Timeline and ledger -> `Report`: numbers are read off, nothing is detected here."""

from __future__ import annotations

import copy

from trainbudget.engine.detect.base import View
from trainbudget.engine.detect.money import spent_by_job
from trainbudget.engine.forecast import project
from trainbudget.engine.ledger import WASTE, Ledger
from trainbudget.engine.mfu import model_flops_utilization
from trainbudget.engine.report import GpuReport, LedgerLine, Report, StepsReport
from trainbudget.engine.timeline import Timeline
from trainbudget.engine.tracks.device import DeviceTrack
from trainbudget.findings import Finding

_PHASE_STATES = {"eval": "evaluating", "save": "saving", "compile": "compiling", "log": "training"}
#: Overhead buckets that turn into waste beyond their budget, and the budget's name (seconds for the whole run).
_BUDGETED = {"eval": "eval_time_s", "save": "save_time_s"}


def report_of(timeline: Timeline, ledger: Ledger, findings: tuple[Finding, ...]) -> Report:
    """The picture of now. Costs O(buckets + devices + window), independent of the run's length."""
    entries = ledger.entries()
    total = ledger.total_s
    lines = {
        bucket: LedgerLine(gpu_seconds=e.gpu_seconds, ratio=e.gpu_seconds / total if total else 0.0, cost=e.cost)
        for bucket, e in entries.items()
    }
    priced = timeline.price is not None
    cost = sum(e.cost or 0.0 for e in entries.values()) if priced else None
    wasted = waste_lines(timeline, ledger, lines)
    price = timeline.price
    return Report(
        header=timeline.header,
        t_s=timeline.now_s,
        wall_s=timeline.wall_s() - timeline.started_s,
        gaps_s=timeline.gaps_s,
        state=state_of(timeline),
        outcome=timeline.run.end.outcome if timeline.run.end is not None else None,
        phase=timeline.run.phase,
        steps=_steps(timeline),
        gpus=tuple(_gpu(d) for d in timeline.gpus.values()),
        host=timeline.host.last,
        model=timeline.model,
        ledger=lines,
        pending_gpu_seconds=ledger.pending_s * ledger.charged_count,
        gpu_seconds=total,
        charged_gpus=ledger.charged_count,
        wait_assumed=ledger.wait_assumed,
        price=price,
        currency=(price.currency if price is not None else None) or timeline.budget_currency,
        cost=cost,
        wasted_gpu_seconds=sum(line.gpu_seconds for line in wasted.values()),
        wasted_cost=sum(line.cost or 0.0 for line in wasted.values()) if priced else None,
        wasted_by=wasted,
        budget=dict(timeline.budget),
        projection=project(timeline, spent_by_job(View(timeline, ledger, {}))[0] if priced else None),
        findings=findings,
        self_=timeline.self_,
        missing=_missing(timeline),
        events=timeline.events,
        data_wait_ratio=data_wait_ratio(timeline),
        phase_seconds=dict(timeline.run.phase_seconds),
    )


def waste_lines(timeline: Timeline, ledger: Ledger, lines: dict[str, LedgerLine]) -> dict[str, LedgerLine]:
    """The wasted part of each bucket: waste buckets whole, evaluation and saving beyond their budget."""
    out = {b: lines[b] for b in WASTE if b in lines and lines[b].gpu_seconds > 0.0}
    for bucket, name in _BUDGETED.items():
        allowed, line = timeline.budget_value(name), lines.get(bucket)
        if allowed is None or line is None:
            continue
        over = line.gpu_seconds - allowed * ledger.charged_count
        if over > 0.0:
            share = over / line.gpu_seconds
            out[bucket] = LedgerLine(
                gpu_seconds=over, ratio=line.ratio * share, cost=None if line.cost is None else line.cost * share
            )
    return out


def state_of(timeline: Timeline) -> str:
    """One word for what the run is doing."""
    run = timeline.run
    if run.end is not None:
        return run.end.outcome or "finished"
    if run.phase in _PHASE_STATES:
        return _PHASE_STATES[run.phase or ""]
    if timeline.stalled_since_s is not None:
        return "stalled"
    if run.training:
        return "training" if run.started else "starting"
    return "idle" if run.left_s is not None else "starting"


def data_wait_ratio(timeline: Timeline) -> float | None:
    """Share of the recent steps' wall time spent waiting for data, or None where it is not measured."""
    records = [r for r in timeline.steps.window() if r.wait_s is not None]
    whole = sum((r.duration_s + (r.wait_s or 0.0)) * r.count for r in records)
    return sum((r.wait_s or 0.0) * r.count for r in records) / whole if whole > 0 else None


def _steps(timeline: Timeline) -> StepsReport:
    track = timeline.steps
    records = track.window()
    waits = [(r.wait_s, r.count) for r in records if r.wait_s is not None]
    count = sum(n for _, n in waits)
    span = sum((r.duration_s + (r.wait_s or 0.0)) * r.count for r in records)
    tokens = sum(r.event.tokens or 0.0 for r in records)
    median_s = track.median_s()
    return StepsReport(
        done=track.total,
        last=timeline.run.last_step,
        total=timeline.steps_total,
        step_time_s=median_s,
        data_wait_s=sum((w or 0.0) * n for w, n in waits) / count if count else None,
        samples=track.samples,
        tokens=track.tokens,
        useful_tokens=track.useful_tokens,
        tokens_per_s=tokens / span if tokens and span > 0 else None,
        model_flops_utilization_ratio=model_flops_utilization(timeline),
        last_end_s=timeline.last_step.event.t_s if timeline.last_step is not None else None,
        histogram=tuple(track.histogram),
        step_sum_s=track.step_sum_s,
    )


def _gpu(device: DeviceTrack) -> GpuReport:
    return GpuReport(
        info=copy.copy(device.info),
        reading=copy.copy(device.last),
        allocator=device.allocator,
        owned=device.owned,
        charged=device.charged,
        unused=device.unused,
        limit_bytes=device.limit_bytes,
        peak_used_bytes=device.peak_used_bytes,
        peak_allocated_bytes=device.peak_allocated_bytes,
        peak_reserved_bytes=device.peak_reserved_bytes,
        headroom_bytes=_headroom(device),
        errors=dict(device.errors),
        errors_total=dict(device.errors_total),
        last_reading_s=device.last_reading_s,
        lost=device.lost_since_s is not None,
    )


def _headroom(device: DeviceTrack) -> float | None:
    """Limit minus the highest use seen: what is left at the worst moment so far."""
    limit = device.limit_bytes
    peaks = [p for p in (device.peak_used_bytes, device.peak_reserved_bytes) if p is not None]
    return limit - max(peaks) if limit is not None and peaks else None


def _missing(timeline: Timeline) -> tuple[str, ...]:
    """What is not known, in plain words; the report says it so that nobody reads a gap as a zero."""
    out = []
    if timeline.price is None:
        out.append("price: no given or dated price, so GPU-hours and no money")
    if not timeline.gpus:
        out.append("gpu: no device data")
    elif all(d.last is None or d.last.utilization_ratio is None for d in timeline.owned):
        out.append("utilization: not supported or no answer")
    if timeline.steps.total and not timeline.steps.wait_known:
        out.append("data wait: not measured, its time is in compute and other")
    if timeline.last_step is not None and timeline.last_step.busy_s is None:
        out.append("GPU idleness inside a step: not measured, its time is in compute")
    if timeline.steps.tokens is not None and timeline.steps.useful_tokens is None:
        out.append("padding: not counted, its time is in compute")
    if timeline.steps.total and timeline.steps_total is None:
        out.append("number of steps: unknown, so nothing is projected")
    return tuple(out)
