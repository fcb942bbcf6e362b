"""trainbudget: a live budget for training runs.

Public names are lazy: importing this module loads no torch, framework, pynvml or prometheus_client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from trainbudget.budget import Budget as Budget
    from trainbudget.errors import TrainBudgetError as TrainBudgetError
    from trainbudget.huggingface import TrainBudgetCallback as HuggingFaceCallback
    from trainbudget.lightning import TrainBudgetCallback as LightningCallback
    from trainbudget.monitor import Monitor as Monitor

_LAZY = {
    "Budget": ("trainbudget.budget", "Budget"),
    "Monitor": ("trainbudget.monitor", "Monitor"),
    "TrainBudgetError": ("trainbudget.errors", "TrainBudgetError"),
    "HuggingFaceCallback": ("trainbudget.huggingface", "TrainBudgetCallback"),
    "LightningCallback": ("trainbudget.lightning", "TrainBudgetCallback"),
}

__all__ = ["Budget", "HuggingFaceCallback", "LightningCallback", "Monitor", "TrainBudgetError", "__version__"]


def __getattr__(name: str) -> Any:
    import importlib

    try:
        module, attribute = _LAZY[name]
    except KeyError:
        raise AttributeError(f"module 'trainbudget' has no attribute {name!r}") from None
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)
