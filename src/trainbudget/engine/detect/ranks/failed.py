"""A rank has failed: which one was the first, the others follow."""

from __future__ import annotations

from collections.abc import Iterable

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.timeline import Timeline
from trainbudget.findings import CodeRecord, Route, Severity

_FAILED = ("failed", "oom")


class RankFailedFirst(BaseDetector):
    """The first rank of the job that failed."""

    record = CodeRecord(
        code="rank_failed_first",
        family="ranks",
        severity=Severity.CRITICAL,
        title="A rank has failed",
        condition="A rank's last word is that it failed or ran out of memory; the first one is named, others fail after it "
        "because their collectives do.",
        silent="For ranks that are only silent; for the ones that fail later; on ranks other than 0; with one rank.",
        evidence={
            "state": "its last word",
            "failed_s": "when it was said",
            "step": "its last step",
            "also": "ranks that failed since, or at the same time",
        },
        levers=(),
        route=Route.PAGE,
        runbook="Read that rank's log, not the others': their NCCL time-outs are consequences. Then restart from the last "
        "checkpoint.",
    )

    def __init__(self) -> None:
        self._session_s: float | None = None  # begin of the session in which it was said

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        if timeline.rank != 0 or not timeline.ranks:
            return
        begun_s = timeline.run.session.begin_s if timeline.run.session is not None else 0.0
        if self._session_s == begun_s:
            return
        failures = _failures(timeline, begun_s)
        if not failures:
            return
        self._session_s = begun_s
        failed_s, rank, state, step = failures[0]
        together = [r for t, r, s, _ in failures if t == failed_s and s == state]
        known = len(together) == 1
        words = f"rank {rank}" if known else f"ranks {', '.join(map(str, together))}"
        what = "ran out of memory" if state == "oom" else "failed"
        yield Signal(
            "rank_failed_first",
            rank=rank if known else None,
            once=True,
            summary=f"{words} {what}{f' after step {step}' if step is not None and known else ''}; the other ranks will follow",
            evidence={
                "state": state,
                "failed_s": round(failed_s, 3),
                "step": step,
                "also": [r for _, r, _, _ in failures if r != rank],
            },
        )


def _failures(timeline: Timeline, begun_s: float) -> list[tuple[float, int, str, int | None]]:
    """(when, rank, state, step) of every failed rank of this session, the first one first; memory before mere failure."""
    found: list[tuple[float, int, str, int | None]] = []
    for track in timeline.ranks.values():
        if track.last is None or track.last.state not in _FAILED:
            continue
        first = next((w for w in track.window if w.state in _FAILED and w.t_s >= begun_s), None)
        if first is not None:
            steps = [w.step for w in track.window if w.step is not None]
            found.append((first.t_s, track.rank, first.state or "failed", max(steps, default=None)))
    if found:
        for moment in timeline.run.moments:
            if moment.event in ("exception", "oom") and moment.t_s >= begun_s:
                found.append((moment.t_s, timeline.rank, "oom" if moment.event == "oom" else "failed", timeline.run.last_step))
                break
    return sorted(found, key=lambda f: (f[0], f[2] != "oom", f[1]))
