"""The levers: what can be changed, declared once. Findings name them by id, advice and documentation are made from them."""

from __future__ import annotations

from trainbudget.catalog.levers.batch import BATCH
from trainbudget.catalog.levers.compute import COMPUTE
from trainbudget.catalog.levers.data import DATA
from trainbudget.catalog.levers.lever import KINDS, Lever, Setting
from trainbudget.catalog.levers.scale import SCALE

LEVERS: dict[str, Lever] = {lever.id: lever for lever in sorted((*DATA, *BATCH, *COMPUTE, *SCALE), key=lambda lever: lever.id)}

__all__ = ["KINDS", "LEVERS", "Lever", "Setting"]
