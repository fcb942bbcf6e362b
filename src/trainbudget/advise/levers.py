"""The levers, where advice looks for them; they are declared in `trainbudget.catalog.levers`."""

from __future__ import annotations

from trainbudget.catalog.levers import LEVERS, Lever, Setting

__all__ = ["LEVERS", "Lever", "Setting"]
