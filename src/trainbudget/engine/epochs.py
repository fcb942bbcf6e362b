"""How many epochs a run was set to have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Where the frameworks keep it: Hugging Face, Lightning.
_NAMES = ("num_train_epochs", "max_epochs")


def planned_epochs(settings: Mapping[str, Any] | None) -> float | None:
    """Epochs as set, or None where nobody says so."""
    for name in _NAMES:
        value = (settings or {}).get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
            return float(value)
    return None
