"""All detectors, most upstream cause first: a later one may look at what is already raised (`View.raised`)."""

from __future__ import annotations

from typing import Any

from trainbudget.engine.detect import efficiency, hardware, memory, ranks, self_, settings, spend, stuck, waiting
from trainbudget.findings import CodeRecord

DETECTORS: tuple[type[Any], ...] = (
    *stuck.DETECTORS,
    *hardware.DETECTORS,
    *ranks.DETECTORS,
    *memory.DETECTORS,
    *waiting.DETECTORS,
    *efficiency.DETECTORS,
    *spend.DETECTORS,
    *settings.DETECTORS,
    *self_.DETECTORS,
)

#: Every code's record, by code.
RECORDS: dict[str, CodeRecord] = {d.record.code: d.record for d in DETECTORS}
