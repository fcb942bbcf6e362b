"""Every epoch begins with a wait: loader workers are created anew."""

from __future__ import annotations

from collections.abc import Iterable

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.timeline import Timeline
from trainbudget.engine.tracks.run import Epoch
from trainbudget.engine.tracks.series import median
from trainbudget.findings import CodeRecord, Route, Severity, Threshold
from trainbudget.quantities import duration, percent

#: Epochs that are compared, the newest ones.
EPOCHS = 20
#: Epoch starts beyond the first that must be seen: the first one pays for start-up, two alike are a habit.
LEAST_STARTS = 2


class EpochStartOverhead(BaseDetector):
    """The wait before an epoch's first step is a visible share of the epoch."""

    record = CodeRecord(
        code="epoch_start_overhead",
        family="waiting",
        severity=Severity.INFO,
        title="Every epoch begins with a pause",
        condition="In the newest epochs (at least two beyond the first) the wait for the first batch exceeds the usual wait "
        "by 5 % of the epoch (warning from 15 % on) and by half a second.",
        silent="For the first epoch alone; where the wait is not measured; for evaluations and saves between epochs, which "
        "are phases.",
        evidence={
            "start_wait_s": "median wait before an epoch's first step",
            "usual_wait_s": "median wait before the others",
            "epoch_s": "median epoch",
            "ratio": "share of the epoch",
        },
        thresholds=(
            Threshold(
                name="ratio",
                default=0.05,
                unit="ratio",
                reason="workers that stay alive cost nothing, so a twentieth is worth it",
            ),
            Threshold(name="warning_ratio", default=0.15, unit="ratio", reason="a seventh of the money for one setting"),
            Threshold(
                name="least_s", default=0.5, unit="s", reason="starting a process and importing torch in it takes 0.4 s and more"
            ),
        ),
        levers=("L02",),
        route=Route.TICKET,
        runbook="Keep the workers alive between epochs (persistent_workers), or repeat the data set within longer epochs.",
    )
    every_s = 15.0
    clear_s = 120.0

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        if timeline.run.epochs_total <= LEAST_STARTS or not timeline.run.training:
            return
        starts = _starts(timeline)
        if len(starts) < LEAST_STARTS:
            return
        start_s = median([e.first_wait_s or 0.0 for e in starts])
        if start_s is None or start_s < view.limit(self.record, "least_s"):
            return
        epoch_s = median(_lengths(timeline, starts))
        shares = timeline.step_shares.current()
        usual_s = (shares.wait_median_s if shares is not None else None) or 0.0
        if epoch_s is None or epoch_s <= 0.0:
            return
        extra_s = start_s - usual_s
        ratio = extra_s / epoch_s
        if extra_s < view.limit(self.record, "least_s") or ratio < view.limit(self.record, "ratio"):
            return
        # One slow start among quick ones is no habit: most of them must be slow.
        if 4 * sum(1 for e in starts if (e.first_wait_s or 0.0) - usual_s >= 0.5 * extra_s) < 3 * len(starts):
            return
        yield Signal(
            "epoch_start_overhead",
            severity=Severity.WARNING if ratio >= view.limit(self.record, "warning_ratio") else Severity.INFO,
            summary=f"each epoch begins with {duration(start_s)} of waiting, {percent(ratio)} of its {duration(epoch_s)}",
            evidence={
                "start_wait_s": round(start_s, 3),
                "usual_wait_s": round(usual_s, 4),
                "epoch_s": round(epoch_s, 2),
                "ratio": round(ratio, 4),
            },
        )


def _starts(timeline: Timeline) -> list[Epoch]:
    """The newest epochs of this session that have a measured first wait, without the session's first."""
    run = timeline.run
    begin_s = run.session.begin_s if run.session is not None else 0.0
    out: list[Epoch] = []
    for epoch in reversed(run.epochs):
        if epoch.begin_s < begin_s or len(out) > EPOCHS:
            break
        out.append(epoch)
    return (
        [e for e in out[:-1] if e.first_wait_s is not None]
        if len(out) <= EPOCHS
        else [e for e in out if e.first_wait_s is not None]
    )


def _lengths(timeline: Timeline, epochs: list[Epoch]) -> list[float]:
    """Seconds of the epochs (newest first) that are over: until their end or, where nobody said it, until the next begin."""
    out = []
    later_s: float | None = None
    for epoch in epochs:
        end_s = epoch.end_s if epoch.end_s is not None else later_s
        if end_s is not None:
            out.append(timeline.wall_s(end_s) - timeline.wall_s(epoch.begin_s))
        later_s = epoch.begin_s
    return out
