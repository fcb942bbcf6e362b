"""No step for far longer than a step takes, while nothing explains it; and the form in which ranks wait for one another."""

from __future__ import annotations

from collections.abc import Iterable

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.detect.devices import any_lost, busiest_utilization
from trainbudget.engine.detect.stuck.spin import Spin, spin_of, suspect_ranks
from trainbudget.engine.timeline import HANG_FLOOR_S, HANG_STEPS
from trainbudget.engine.tracks.device import IDLE_UTILIZATION
from trainbudget.findings import CodeRecord, Route, Severity, Threshold
from trainbudget.quantities import duration, percent

_LIMITS = (
    Threshold(name="steps", default=HANG_STEPS, unit="median steps", reason="no batch takes ten times as long as the others"),
    Threshold(name="floor_s", default=HANG_FLOOR_S, unit="s", reason="retries of a slow disk or network end within two minutes"),
)


class CollectiveHang(BaseDetector):
    """GPUs spin in a collective that never completes."""

    record = CodeRecord(
        code="collective_hang",
        family="stuck",
        severity=Severity.CRITICAL,
        title="Ranks wait for one another for ever",
        condition="No step for the time of a hang while a GPU of the job is at 90 % utilization or more at less than half of its "
        "training power (memory traffic, where power is not told).",
        silent="With one GPU and one rank; in evaluation, saving, compilation and start-up; when a GPU is lost; when power says "
        "that the GPU works.",
        evidence={
            "silent_s": "seconds since the last progress",
            "limit_s": "seconds after which a run counts as hanging",
            "utilization_ratio": "of a spinning GPU over the last minute",
            "power_w": "of the same GPU",
            "training_power_w": "what it drew while steps came",
            "suspect_ranks": "ranks that left, fell silent, have no work or are behind",
            "suspect_gpus": "own GPUs without work",
            "last_step": "the last step that completed",
        },
        thresholds=_LIMITS,
        levers=(),
        route=Route.PAGE,
        runbook="See what the suspect ranks do (stacks in the run's directory): usually they left the loop early or failed "
        "without a word. Make sure that every rank has the same number of batches. Stop the job: spinning is paid like training.",
    )

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        since_s = timeline.stalled_since_s
        if since_s is None or any_lost(timeline):
            return
        spin = spin_of(timeline)
        if spin is None:
            return
        silent_s = timeline.since(since_s)
        yield Signal(
            "collective_hang",
            summary=f"no step for {silent_s:.0f} s: GPUs spin in a collective at {percent(spin.utilization_ratio)} utilization"
            f"{_power_words(spin)}{_suspect_words(spin)}",
            evidence={
                "silent_s": round(silent_s, 1),
                "limit_s": round(timeline.hang_after_s, 1),
                "utilization_ratio": round(spin.utilization_ratio, 3),
                "power_w": spin.power_w,
                "training_power_w": spin.training_power_w,
                "suspect_ranks": list(spin.suspect_ranks),
                "suspect_gpus": list(spin.suspect_gpus),
                "last_step": timeline.run.last_step,
            },
        )


class Hang(BaseDetector):
    """No step for far longer than a step takes."""

    record = CodeRecord(
        code="hang",
        family="stuck",
        severity=Severity.CRITICAL,
        title="Training has stopped moving",
        condition="No optimizer step for 10 x the median step or 120 s (twice the first compilation, in a run that compiles), "
        "whichever is longer, between train_begin and train_end. In a notebook with an idle GPU: info "
        "(notebook_idle says more after 30 minutes).",
        silent="In evaluation, saving, compilation and start-up; after train_end, Ctrl-C or an exception; when the GPU is lost "
        "(gpu_lost) or ranks spin in a collective (collective_hang).",
        evidence={
            "silent_s": "seconds since the last step, phase or word of progress",
            "limit_s": "seconds after which a run counts as hanging",
            "utilization_ratio": "of the busiest GPU over the last minute",
            "last_step": "the last step that completed",
            "after_phase": "the phase that ended last, where no step has come since",
            "suspect_ranks": "ranks that are silent, failed, without work or behind",
        },
        thresholds=_LIMITS,
        levers=(),
        route=Route.PAGE,
        runbook="Look at the Python stacks in the run's directory (stacks.txt), then at the data loader and, with several ranks, "
        "at which rank is behind. Stop the run when no rank moves: it costs as much as a running one.",
    )

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        since_s = timeline.stalled_since_s
        if since_s is None or "collective_hang" in view.raised or any_lost(timeline) or spin_of(timeline) is not None:
            return
        silent_s = timeline.since(since_s)
        utilization = busiest_utilization(timeline)
        closed = timeline.run.closed[-1] if timeline.run.closed else None
        last = timeline.last_step
        after = closed.phase if closed is not None and last is not None and closed.end_s > last.event.t_s else None
        yield Signal(
            "hang",
            severity=_severity(view, utilization),
            summary=f"no step for {silent_s:.0f} s{f', since the {after} ended' if after else ''}, "
            f"a step takes {duration(timeline.steps.median_s())}",
            evidence={
                "silent_s": round(silent_s, 1),
                "limit_s": round(timeline.hang_after_s, 1),
                "utilization_ratio": None if utilization is None else round(utilization, 3),
                "last_step": timeline.run.last_step,
                "after_phase": after,
                "suspect_ranks": list(suspect_ranks(timeline)),
            },
        )


def _severity(view: View, utilization: float | None) -> Severity:
    """In a notebook an idle GPU in mid-loop may be somebody at a breakpoint: a note, until notebook_idle says more."""
    host = view.timeline.header.host
    at_breakpoint = host is not None and host.interactive is True and utilization is not None and utilization < IDLE_UTILIZATION
    return Severity.INFO if at_breakpoint else Severity.CRITICAL


def _power_words(spin: Spin) -> str:
    if spin.power_w is None:
        return ""
    usual = f" of {spin.training_power_w:.0f}" if spin.training_power_w is not None else ""
    return f" and {spin.power_w:.0f}{usual} W"


def _suspect_words(spin: Spin) -> str:
    if spin.suspect_ranks:
        return f"; missing: rank {', '.join(map(str, spin.suspect_ranks))}"
    if spin.suspect_gpus:
        return f"; without work: GPU {', '.join(map(str, spin.suspect_gpus))}"
    return ""
