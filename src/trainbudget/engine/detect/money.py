"""Money for detectors: what the job has cost, and what GPU-seconds of this run cost. None wherever a price is missing."""

from __future__ import annotations

from trainbudget.engine.detect.base import View
from trainbudget.quantities import money

#: A rank that has not been heard of for this long is counted at its last known rate, and so said.
SILENT_RANK_S = 120.0
#: Less than a cent is not worth a word.
LEAST_MONEY = 0.01


def cost_of(view: View, gpu_seconds: float) -> float | None:
    """What these GPU-seconds cost at today's price, in `currency(view)`."""
    price = view.timeline.price
    if price is None or price.per_gpu_hour is None:
        return None
    return gpu_seconds * price.per_gpu_hour / 3600.0


def currency(view: View) -> str:
    price = view.timeline.price
    return (price.currency if price is not None else None) or view.timeline.budget_currency or ""


def hours_and_money(view: View, gpu_seconds: float) -> str:
    """`3.2 GPU-hours, 6.40 USD`; without the money where there is no price or less than a cent."""
    minutes = gpu_seconds / 60.0
    text = f"{minutes:.1f} GPU-minutes" if minutes < 9.95 else f"{minutes:.0f} GPU-minutes"
    if minutes >= 59.5:
        text = f"{minutes / 60.0:,.1f} GPU-hours"
    cost = cost_of(view, gpu_seconds)
    return text if cost is None or cost < LEAST_MONEY else f"{text}, {money(cost, currency(view))}"


def spent_by_job(view: View) -> tuple[float, bool]:
    """Money the whole job has spent so far, earlier attempts included, and whether part of it is assumed.

    Own cost comes from the ledger and its pending seconds; other ranks' from their last words, forward at their own rate.
    Ranks never heard of are taken to cost what this one does.
    """
    timeline, ledger = view.timeline, view.ledger
    own = sum(ledger.cost.values()) + (cost_of(view, ledger.pending_s * ledger.charged_count) or 0.0)
    total, known, assumed = own, 1, False
    for track in timeline.ranks.values():
        word = track.last
        if word is None or word.cost is None or track.rank == timeline.rank:
            continue
        silent_s = timeline.since(word.t_s)
        since_start_s = timeline.wall_s(word.t_s) - timeline.started_s
        rate = word.cost / since_start_s if since_start_s > 0 else 0.0
        total += word.cost + rate * silent_s
        assumed = assumed or silent_s > SILENT_RANK_S
        known += 1
    missing = timeline.world_size - known
    if missing > 0:
        total, assumed = total + missing * own, True
    return total + timeline.run.cost_before, assumed
