"""The ranks carry unequal loads, now this one more, now that one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.detect.ranks.words import last_spread_s, rank_views, steps_come
from trainbudget.engine.tracks.series import median
from trainbudget.findings import CodeRecord, Route, Severity, Threshold
from trainbudget.quantities import duration, percent

#: Rounds of words that are compared.
LEAST_ROUNDS = 12
#: A rank that is the last in more of the rounds than this is a straggler, not an imbalance.
ALWAYS = 0.6


class RankImbalance(BaseDetector):
    """In each step some rank is much later than the others, and it is not always the same one."""

    record = CodeRecord(
        code="rank_imbalance",
        family="ranks",
        severity=Severity.INFO,
        title="Ranks carry unequal loads",
        condition="In the last 12 to 24 rounds of words the latest rank is later than the median of the ranks by 15 % of the "
        "step (median over the rounds; warning from 40 % on), and it is a different one each time.",
        silent="When it is the same rank (straggler); with fewer than three ranks that tell their time before the first "
        "collective.",
        evidence={
            "excess_s": "median over the rounds of the latest rank beyond the median rank",
            "excess_ratio": "share of the step",
            "rounds": "compared",
            "latest": "rank -> rounds in which it was the latest",
        },
        thresholds=(
            Threshold(name="info_ratio", default=0.15, unit="ratio", reason="random lengths alone make 5-10 %"),
            Threshold(
                name="warning_ratio", default=0.40, unit="ratio", reason="two fifths of the money wait for the longest batch"
            ),
        ),
        levers=("L26", "L06"),
        route=Route.TICKET,
        runbook="Give every rank the same work: batches by tokens instead of by samples, length-grouped sampling over all ranks, "
        "drop_last.",
    )
    every_s = 30.0
    clear_s = 120.0

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        if timeline.rank != 0 or len(timeline.ranks) < 2 or not steps_come(timeline) or "straggler" in view.raised:
            return
        step_s = timeline.steps.median_s()
        if not step_s or last_spread_s(timeline) < 0.5 * view.limit(self.record, "info_ratio") * step_s:
            return
        # Words of the other ranks come together; our own steps are not one of their rounds.
        views = [v for v in rank_views(timeline) if v.rank != timeline.rank and v.befores_s]
        if len(views) < 2:
            return
        rounds = min(len(v.latenesses_s) for v in views)
        if rounds < LEAST_ROUNDS:
            return
        excesses, latest = [], Counter[int]()
        for back in range(1, rounds + 1):
            values = [(v.latenesses_s[-back], v.rank) for v in views]
            worst, rank = max(values)
            excesses.append(worst - (median([value for value, _ in values]) or 0.0))
            latest[rank] += 1
        excess_s = median(excesses) or 0.0
        ratio = excess_s / step_s
        if ratio < view.limit(self.record, "info_ratio") or latest.most_common(1)[0][1] > max(ALWAYS, 1.5 / len(views)) * rounds:
            return
        yield Signal(
            "rank_imbalance",
            severity=Severity.WARNING if ratio >= view.limit(self.record, "warning_ratio") else Severity.INFO,
            summary=f"in each step the ranks wait {duration(excess_s)} ({percent(ratio)}) for the one with most work, in turns",
            evidence={
                "excess_s": round(excess_s, 4),
                "excess_ratio": round(ratio, 3),
                "rounds": rounds,
                "latest": {str(rank): count for rank, count in sorted(latest.items())},
            },
        )
