"""Cards that can be rented by the hour: how much a process can use on each, and which of them would hold a given peak.

Usable memory is the table of `trainbudget.plan` (each figure with its source there; a test compares the two). The ladder is
what clouds rent out, no consumer cards. List prices are medians over providers of on-demand rows collected 2024-2025; they
only decide whether a card is the cheaper one, no money is computed from them.
"""

from __future__ import annotations

from dataclasses import dataclass

GIB = float(1024**3)
#: A peak must leave this much of a card free: the spread of a traced peak and of the allocator's cache.
SPARE_RATIO = 0.10


@dataclass(frozen=True, slots=True)
class Card:
    """`marks` are words of the driver's device name, all of which must be in it."""

    name: str
    usable_gib: float
    capability: float
    list_usd_per_hour: float
    marks: tuple[str, ...]


LADDER = (
    Card("T4", 14.6, 7.5, 1.20, ("T4",)),
    Card("L4", 22.0, 8.9, 1.00, ("L4",)),
    Card("A10G", 22.1, 8.6, 1.83, ("A10G",)),
    Card("L40S", 44.4, 8.9, 2.26, ("L40S",)),
    Card("A100-80GB", 79.2, 8.0, 3.43, ("A100", "80GB")),
    Card("A100-40GB", 39.4, 8.0, 3.67, ("A100", "40GB")),
    Card("H200", 139.8, 9.0, 3.99, ("H200",)),
    Card("H100", 79.2, 9.0, 4.19, ("H100",)),
    Card("B200", 178.4, 10.0, 6.89, ("B200",)),
    Card("B300", 267.7, 10.3, 11.0, ("B300",)),
)


def card_of(device_name: str | None) -> Card | None:
    """The ladder's card with this driver name, or None."""
    if not device_name:
        return None
    words = set(device_name.upper().replace("-", " ").split())
    return next((card for card in LADDER if all(mark in words for mark in card.marks)), None)


def smaller_cards(peak_bytes: float, device_name: str | None, *, minimum_capability: float) -> tuple[Card, ...]:
    """Cards cheaper than this one that would hold the peak with `SPARE_RATIO` to spare, cheapest first.

    Empty when the card is not one of the ladder: what it costs is then unknown.
    """
    here = card_of(device_name)
    if here is None:
        return ()
    needed_gib = peak_bytes / GIB / (1.0 - SPARE_RATIO)
    fitting = [
        card
        for card in LADDER
        if card.usable_gib >= needed_gib
        and card.list_usd_per_hour < here.list_usd_per_hour
        and card.capability >= minimum_capability
    ]
    return tuple(sorted(fitting, key=lambda card: card.list_usd_per_hour))
