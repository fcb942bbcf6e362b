"""Work at risk: what would be lost if the run ended now."""

from __future__ import annotations

from collections.abc import Iterable

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.detect.money import cost_of, currency, hours_and_money
from trainbudget.engine.timeline import Timeline
from trainbudget.findings import CodeRecord, Route, Severity, Threshold

#: Frameworks whose saves reach us whatever the user does; elsewhere "no save seen" is unknown, not "nothing saved".
SAVES_ARE_SEEN = frozenset({"huggingface", "lightning"})


class UnsavedWork(BaseDetector):
    """Hours of work stand on no checkpoint."""

    record = CodeRecord(
        code="unsaved_work",
        family="spend",
        severity=Severity.WARNING,
        title="Hours of work are not saved",
        condition="No checkpoint for 6 hours of training; for 1 hour on a spot instance.",
        silent="Where saves cannot be seen (plain loops that never announced one); in notebooks; while a save is under way; "
        "after the end; on ranks other than 0.",
        evidence={
            "at_risk_s": "wall seconds since the last checkpoint, or since the first step",
            "gpu_seconds": "at risk, on all charged GPUs of the job",
            "cost": "of them; null without a price",
            "currency": "of the cost",
            "saves": "checkpoints so far",
            "spot": "whether the price is a spot price",
        },
        thresholds=(
            Threshold(
                name="for_s",
                default=21600.0,
                unit="s",
                reason="the best interval is sqrt(2 x save x MTBF) (Young 1974): 2.4 h for saves of a minute in runs that "
                "fail once a week (a time limit, memory, a reboot); 2.5 times that is a gamble",
            ),
            Threshold(
                name="spot_for_s",
                default=3600.0,
                unit="s",
                reason="the same with an interruption a day: 54 minutes",
            ),
        ),
        levers=("L31",),
        route=Route.TICKET,
        runbook="Save now if the script can (a signal, a control file), and set a save interval for the next run.",
    )
    every_s = 60.0

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        run, session = timeline.run, timeline.run.session
        if not run.training or session is None or session.first_step_start_s is None or timeline.rank != 0:
            return
        at_risk_s = timeline.wall_s() - last_safe_s(timeline, session.first_step_start_s)
        spot = timeline.price is not None and timeline.price.spot is True
        if at_risk_s < view.limit(self.record, "spot_for_s" if spot else "for_s"):
            return
        if not _saves_would_be_seen(timeline) or run.in_phase("save"):
            return
        gpu_s = at_risk_s * view.ledger.charged_count * timeline.world_size
        yield Signal(
            "unsaved_work",
            summary=f"no checkpoint for {at_risk_s / 3600:.1f} h: {hours_and_money(view, gpu_s)} would be lost",
            evidence={
                "at_risk_s": round(at_risk_s, 1),
                "gpu_seconds": round(gpu_s, 1),
                "cost": cost_of(view, gpu_s),
                "currency": currency(view) or None,
                "saves": timeline.shares.saves,
                "spot": spot,
            },
        )


def last_safe_s(timeline: Timeline, first_step_s: float) -> float:
    """Wall second up to which work is on a checkpoint: the last save's end, or the session's first step."""
    begun_s = timeline.wall_s(first_step_s)
    saved_s = timeline.shares.last_save_end_s
    return begun_s if saved_s is None else max(begun_s, saved_s)


def _saves_would_be_seen(timeline: Timeline) -> bool:
    if timeline.header.host is not None and timeline.header.host.interactive:
        return False
    return timeline.shares.saves > 0 or timeline.header.framework in SAVES_ARE_SEEN
