"""What the ledger says was wasted, where no other finding says why."""

from __future__ import annotations

from collections.abc import Iterable

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.detect.efficiency.busy import throughput_ratio
from trainbudget.engine.detect.money import cost_of, currency, hours_and_money
from trainbudget.engine.ledger import WASTE
from trainbudget.findings import CodeRecord, Route, Severity, Threshold
from trainbudget.quantities import percent

#: Findings that already explain the seconds of a bucket: they say it, this one does not say it again.
EXPLAINED_BY: dict[str, frozenset[str]] = {
    "data_wait": frozenset({"input_bound", "epoch_start_overhead"}),
    "host_gap": frozenset({"launch_bound", "gc_pause", "optimizer_offload"}),
    "padding": frozenset({"padding_waste"}),
    "optimizer_offload": frozenset({"optimizer_offload", "needless_offload"}),
    "idle": frozenset({"unused_gpu", "gpu_idle", "finished_holding_gpu", "notebook_idle", "naive_model_parallel"}),
    "stall": frozenset({"hang", "collective_hang", "gpu_lost", "gpu_unavailable"}),
    "lost": frozenset({"oom"}),
    "other": frozenset({"gc_pause", "epoch_start_overhead"}),  # where they fall between two steps
}


#: Buckets in words.
WORDS = {
    "data_wait": "waiting for data",
    "host_gap": "an idle GPU inside steps",
    "optimizer_offload": "an optimizer on the CPU",
    "idle": "GPUs without work",
    "stall": "standstill",
    "lost": "work lost or repeated",
    "other": "unexplained",
}


#: A tenth off the plan is the plan: a calibrated prediction is right to 5-10 %.
PLANNED_RATIO = 0.9


class WastedSpend(BaseDetector):
    """A large part of what was paid for bought nothing."""

    record = CodeRecord(
        code="wasted_spend",
        family="spend",
        severity=Severity.WARNING,
        title="A large part of the GPU time is wasted",
        condition="The ledger's waste buckets hold 30 % or more of all GPU-seconds, one GPU-hour or more, and no active finding "
        "explains the largest of them.",
        silent="In notebooks for the time between cells; for gaps inside steps that are as quick as planned; while another "
        "finding names the largest bucket's cause; below one GPU-hour of waste.",
        evidence={
            "waste_ratio": "share of all GPU-seconds",
            "gpu_seconds": "wasted",
            "cost": "of them; null without a price",
            "currency": "of the cost",
            "buckets": "bucket -> GPU-seconds, largest first",
        },
        thresholds=(
            Threshold(
                name="share_ratio", default=0.30, unit="ratio", reason="a third of the money; 30 % less is a 1.4-fold speed-up"
            ),
            Threshold(
                name="least_gpu_s",
                default=3600.0,
                unit="s",
                reason="less than one GPU-hour costs less than looking into it does",
            ),
        ),
        levers=("L35",),
        route=Route.WEEKLY,
        runbook="Open the run's report: the ledger shows when the largest bucket grew and what went on then.",
    )
    every_s = 60.0
    clear_s = 600.0

    def check(self, view: View) -> Iterable[Signal]:
        seconds = view.ledger.seconds
        host = view.timeline.header.host
        notebook = host is not None and host.interactive is True
        # Between the cells of a notebook somebody thinks; `notebook_idle` says when that takes too long.
        wasted = {bucket: seconds[bucket] for bucket in WASTE if bucket in seconds and not (notebook and bucket == "idle")}
        waste_s = sum(wasted.values())
        if waste_s < view.limit(self.record, "least_gpu_s"):
            return
        ratio = waste_s / view.ledger.total_s
        if ratio < view.limit(self.record, "share_ratio"):
            return
        ordered = sorted(wasted.items(), key=lambda item: -item[1])
        largest = ordered[0][0]
        if EXPLAINED_BY.get(largest, frozenset()) & view.raised:
            return
        if largest == "host_gap" and (throughput_ratio(view.timeline) or 0.0) >= PLANNED_RATIO:
            return  # a GPU that idles inside steps as quick as planned was bought that way
        yield Signal(
            "wasted_spend",
            summary=f"{percent(ratio)} of the GPU time bought nothing ({hours_and_money(view, waste_s)}), "
            f"most of it {WORDS.get(largest, largest)}",
            evidence={
                "waste_ratio": round(ratio, 4),
                "gpu_seconds": round(waste_s, 1),
                "cost": cost_of(view, waste_s),
                "currency": currency(view) or None,
                "buckets": {bucket: round(s, 1) for bucket, s in ordered if s > 0.0},
            },
        )
