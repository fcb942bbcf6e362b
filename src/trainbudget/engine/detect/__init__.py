"""All detectors, most upstream cause first: a later one may look at what is already raised (`View.raised`)."""

from __future__ import annotations

from typing import Any

from trainbudget.engine.detect import memory, spend, stuck, waiting
from trainbudget.findings import CodeRecord

DETECTORS: tuple[type[Any], ...] = (
    *stuck.DETECTORS,
    *memory.DETECTORS,
    *waiting.DETECTORS,
    *spend.DETECTORS,
)

#: Every code's record, by code.
RECORDS: dict[str, CodeRecord] = {d.record.code: d.record for d in DETECTORS}
