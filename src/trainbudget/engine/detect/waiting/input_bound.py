"""The GPU waits for data."""

from __future__ import annotations

from collections.abc import Iterable

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.detect.devices import fresh, steps_utilization
from trainbudget.engine.detect.waiting.input_cause import InputEvidence, cause_of, evidence_of, is_burst
from trainbudget.engine.timeline import Timeline
from trainbudget.engine.tracks.step_shares import StepShares
from trainbudget.findings import CodeRecord, Route, Severity, Threshold
from trainbudget.quantities import duration, percent

#: A second epoch whose wait is below this share of the first one's read from a cache that the first one had filled.
WARM_RATIO = 1.0 / 3.0
#: Waits that are left out before a habit is seen: two, or three in a hundred.
HICCUPS = 2
HICCUP_RATIO = 0.03
#: Steps of the second epoch after which that is said.
WARM_STEPS = 20


class InputBound(BaseDetector):
    """The training thread waits for the next batch and the GPU has nothing to do meanwhile."""

    record = CodeRecord(
        code="input_bound",
        family="waiting",
        severity=Severity.INFO,
        title="The GPU waits for data",
        condition="Over the last 100 steps (or 10 minutes, at least 20 steps) the wait for data in which the GPU is idle "
        "takes 10 % of the time, warning from 30 % on. First steps of epochs are left out.",
        silent="In warm-up; at epoch starts (epoch_start_overhead) and resumes; for two or three long waits in a hundred steps; "
        "while the GPU is busy in the wait; where the wait is not measured.",
        evidence={
            "wait_ratio": "share of the steps' wall time, the part with an idle GPU",
            "wait_s": "mean wait before one step",
            "step_time_s": "median step",
            "assumed": "true where nobody knows what the GPU did in the wait",
            "loader_workers": "loader processes",
            "cpu_ratio": "load of the whole machine while training",
            "io_wait_ratio": "share of time in which CPUs waited for disks",
            "worker_cpu_ratio": "cores that each worker keeps busy",
            "burst_period": "steps between long waits, where they come in a rhythm",
        },
        thresholds=(
            Threshold(name="info_ratio", default=0.10, unit="ratio", reason="below it a faster loader is not worth the work"),
            Threshold(name="warning_ratio", default=0.30, unit="ratio", reason="a third of the money buys waiting"),
        ),
        causes=("workers", "cpu", "storage", "cold_cache", "tokenize", "burst"),
        levers=("L01", "L02", "L04"),
        route=Route.TICKET,
        runbook="workers: raise the number of loader workers while the CPU has room. burst: raise workers or the prefetch "
        "factor. cpu, tokenize: move work out of the loader, prepare the data set once. storage, cold_cache: a local disk, "
        "larger files, sequential reads; a cold cache ends by itself with the first epoch.",
    )
    every_s = 15.0

    def __init__(self) -> None:
        self._first_epoch_wait_s: float | None = None  # mean wait in the first epoch, while its cause is open
        self._sums_s = (0.0, 0.0)  # waits and steps of the run at the last look
        self._waiting = False  # the last full look saw a wait
        self._evidence: InputEvidence | None = None  # by which the cause was named

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        if not self._worth(view):
            return
        shares = timeline.step_shares.current()
        if shares is None or shares.wait_ratio is None or shares.wait_s is None:
            return
        if self._first_epoch_wait_s is not None:
            yield from self._cold_cache(view, shares)
        self._waiting = shares.wait_ratio >= view.limit(self.record, "info_ratio")
        if not self._waiting or not timeline.run.training:
            return
        idle = idle_wait_ratio(timeline, shares)
        if idle is None or idle[0] < view.limit(self.record, "info_ratio"):
            return
        ratio, assumed = idle
        known = self._evidence if "input_bound" in view.raised else None
        evidence = known if known is not None else evidence_of(timeline, shares)
        if not is_burst(evidence):
            ratio = min(ratio, usual_wait_ratio(shares))
            if ratio < view.limit(self.record, "info_ratio"):
                return  # a few long waits, not a habit
        cause = cause_of(evidence)
        if timeline.run.epochs_total == 1:
            self._first_epoch_wait_s = shares.wait_s if cause is None and not evidence.host_open else None
        elif self._first_epoch_wait_s is not None:
            cause = None  # the window still holds the first epoch: the second is about to tell a cold cache from a slow disk
        # Evidence is that of the raise: gathered once, and again only while the cause is open.
        self._evidence = evidence if cause is not None else None
        yield self._signal(view, shares, evidence, cause=cause, ratio=ratio, assumed=assumed)

    def _worth(self, view: View) -> bool:
        """Whether the window is worth a full look: while a wait is known, or when the time since the last look shows one."""
        steps = view.timeline.steps
        wait_s, step_s = steps.wait_sum_s - self._sums_s[0], steps.step_sum_s - self._sums_s[1]
        self._sums_s = (steps.wait_sum_s, steps.step_sum_s)
        if self._waiting or self._first_epoch_wait_s is not None:
            return True
        return wait_s > 0.0 and wait_s >= 0.5 * view.limit(self.record, "info_ratio") * (wait_s + step_s)

    def _signal(
        self, view: View, shares: StepShares, evidence: InputEvidence, *, cause: str | None, ratio: float, assumed: bool
    ) -> Signal:
        warning = ratio >= view.limit(self.record, "warning_ratio")
        return Signal(
            "input_bound",
            cause=cause,
            severity=Severity.WARNING if warning else Severity.INFO,
            summary=f"{'the GPU' if view.timeline.gpus else 'training'} waits for data {percent(ratio)} of the time "
            f"({duration(shares.wait_s or 0.0)} before each step)",
            evidence={
                "wait_ratio": round(ratio, 4),
                "wait_s": round(shares.wait_s or 0.0, 4),
                "step_time_s": shares.step_s,
                "assumed": assumed,
                "loader_workers": evidence.workers,
                "cpu_ratio": _rounded(evidence.cpu_ratio),
                "io_wait_ratio": _rounded(evidence.io_wait_ratio),
                "worker_cpu_ratio": _rounded(evidence.worker_cpu_ratio),
                "burst_period": evidence.burst_period,
            },
        )

    def _cold_cache(self, view: View, shares: StepShares) -> Iterable[Signal]:
        """Say of a wait of the first epoch, once the second one is under way, what it was."""
        run = view.timeline.run
        first = self._first_epoch_wait_s
        if first is None or run.epochs_total < 2 or run.epoch is None or run.epoch.steps < WARM_STEPS:
            return
        recent = shares.waits_s[-WARM_STEPS:]
        mean = sum(recent) / max(1, len(recent))
        self._first_epoch_wait_s = None
        cause = "cold_cache" if mean <= WARM_RATIO * first else "storage"
        evidence = evidence_of(view.timeline, shares)
        if cause == "cold_cache" or (shares.wait_ratio or 0.0) >= view.limit(self.record, "info_ratio"):
            ratio = first / (first + shares.step_s)
            yield self._signal(view, shares, evidence, cause=cause, ratio=ratio, assumed=True)


def usual_wait_ratio(shares: StepShares) -> float:
    """Share of the time spent waiting, the few longest waits left out: a hiccup of a disk or a network is no habit."""
    drop = max(HICCUPS, round(HICCUP_RATIO * len(shares.waits_s)))
    waits = sorted(shares.waits_s)[: -drop or None]
    mean = sum(waits) / max(1, len(shares.waits_s))
    return mean / (mean + shares.step_s) if mean + shares.step_s > 0.0 else 0.0


def idle_wait_ratio(timeline: Timeline, shares: StepShares) -> tuple[float, bool] | None:
    """Share of the time in which data is waited for and the GPU is idle; and whether the latter is only assumed.

    None while it will soon be known. It is assumed only of devices that never tell their utilization.
    """
    wait = shares.wait_ratio or 0.0
    if shares.wait_idle_ratio is not None:
        return shares.wait_idle_ratio, False
    utilization = steps_utilization(timeline)
    if utilization is None:
        soon = any(d.last is not None and d.last.utilization_ratio is not None and fresh(timeline, d) for d in timeline.owned)
        return None if soon else (wait, True)
    return min(wait, 1.0 - utilization[0]), False


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
