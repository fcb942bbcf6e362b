"""Settings with a fixed set of values, numbers with a least one: a wrong value is one line that names the nearest right one."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from trainbudget.errors import ConfigError
from trainbudget.plan.train_spec import CHECKPOINTING, PRECISIONS, QUANTIZATIONS, STRATEGIES, TASKS

#: Hugging Face's `optim` names (transformers 5, `OptimizerNames`) and two of ours: adamw_loop, sgd_momentum.
OPTIMIZERS = (
    "adafactor",
    "adagrad",
    "adalomo",
    "adamw_8bit",
    "adamw_anyprecision",
    "adamw_apex_fused",
    "adamw_bnb_8bit",
    "adamw_hf",
    "adamw_loop",
    "adamw_torch",
    "adamw_torch_4bit",
    "adamw_torch_8bit",
    "adamw_torch_fused",
    "adamw_torch_npu_fused",
    "adamw_torch_xla",
    "ademamix",
    "ademamix_8bit",
    "apollo_adamw",
    "apollo_adamw_layerwise",
    "galore_adafactor",
    "galore_adafactor_layerwise",
    "galore_adamw",
    "galore_adamw_8bit",
    "galore_adamw_8bit_layerwise",
    "galore_adamw_layerwise",
    "grokadamw",
    "lion_32bit",
    "lion_8bit",
    "lomo",
    "paged_adamw",
    "paged_adamw_32bit",
    "paged_adamw_8bit",
    "paged_ademamix_32bit",
    "paged_ademamix_8bit",
    "paged_lion_32bit",
    "paged_lion_8bit",
    "rmsprop",
    "rmsprop_bnb",
    "rmsprop_bnb_32bit",
    "rmsprop_bnb_8bit",
    "schedule_free_adamw",
    "schedule_free_radam",
    "schedule_free_sgd",
    "sgd",
    "sgd_momentum",
    "stable_adamw",
)
DTYPES = ("float32", "float16", "bfloat16")
ATTENTIONS = ("sdpa", "eager", "flash_attention_2", "flash_attention_3", "flex_attention")
LOOPS = ("trainer", "plain")

_VALUES: dict[tuple[str, str], Sequence[str]] = {
    ("model", "task"): TASKS,
    ("model", "dtype"): (*DTYPES, *(f"torch.{d}" for d in DTYPES)),
    ("model", "attention"): ATTENTIONS,
    ("train", "precision"): PRECISIONS,
    ("train", "optimizer"): OPTIMIZERS,
    ("train", "activation_checkpointing"): tuple(c for c in CHECKPOINTING if c is not None),
    ("train", "quantization"): QUANTIZATIONS,
    ("train", "loop"): LOOPS,
    ("parallel", "strategy"): STRATEGIES,
}
_FLAGS = {"task": "--task", "precision": "--precision", "optimizer": "--optim", "strategy": "--strategy"}
#: Numbers that may be zero: no clipping, no preprocessing, a card that costs nothing.
_MAY_BE_ZERO = ("max_grad_norm", "preprocess_cpu_hours", "price_per_hour")


def check_values(section: str, values: Mapping[str, Any], where: str, *, flags: bool = False) -> None:
    """Refuse a value that does not exist, in the words of a plan file's table or (`flags`) of the command line.

    Raises:
        ConfigError: with the nearest valid value and all of them.
    """
    for key, value in values.items():
        name = _FLAGS[key] if flags and key in _FLAGS else f"{where}: [{section}] {key}"
        known = _VALUES.get((section, key))
        if known is not None and isinstance(value, str) and value not in known:
            raise ConfigError(f"{name}: {unknown(value, known)}")
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            _check_number(name, key, value)


def _check_number(name: str, key: str, value: float) -> None:
    if key in _MAY_BE_ZERO and 0 <= value < float("inf"):
        return
    check_above_zero(name, value, "0 or above" if key in _MAY_BE_ZERO else None)


def check_above_zero(name: str, value: float, told: str | None = None) -> None:
    """Refuse what is not above zero, or not finite.

    Raises:
        ConfigError: see there.
    """
    if not 0 < value < float("inf"):
        raise ConfigError(f"{name} must be {told or ('at least 1' if isinstance(value, int) else 'above 0')}, not {value:g}")


def unknown(value: str, known: Sequence[str]) -> str:
    """`'bf61' is unknown; did you mean 'bf16'? known: ...`: the nearest three of many values, all of few."""
    near = difflib.get_close_matches(value.lower(), list(known), n=3, cutoff=0.6)
    meant = f"; did you mean {' or '.join(repr(n) for n in near[: 3 if len(known) > 12 else 1])}?" if near else ""
    listed = f" (known: {', '.join(known)})" if len(known) <= 12 or not near else ""
    return f"{value!r} is unknown{meant}{listed}"
