"""Memory of a training step from formulas, for what cannot be traced: a wide interval and a word that says so.

Parameters, gradients and optimizer state follow from the configuration's sizes and the dtypes; activations of a transformer
layer are Korthikanti et al. 2022 (arXiv 2205.05198): s*b*h*(34 + 5*a*s/h) bytes in half precision, without the quadratic term
for fused attention. On 51 published rows such formulas were off by 31 % in the median and 78 % at worst, nearly all of it on
activations: the interval is a quarter below and four fifths above on them, and a twentieth on states.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainbudget.errors import ConfigError
from trainbudget.plan.memory_prediction import MemoryPrediction
from trainbudget.plan.train_spec import TargetGpu, TrainSpec
from trainbudget.plan.uncertainty import Interval, UncertainPart, interval
from trainbudget.plan.workspaces import context_bytes, cublas_workspace_bytes

_NAMES = {
    "hidden": ("hidden_size", "n_embd", "d_model", "dim", "embed_dim"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "vocabulary": ("vocab_size",),
    "inner": ("intermediate_size", "n_inner", "d_ff", "ffn_dim"),
}
_STATES = {
    "sgd": 0.0,
    "adafactor": 0.02,
    "8bit": 2.06,
    "4bit": 1.1,
    "lion": 4.0,
    "paged": 0.0,
}  # bytes a parameter; AdamW: two full tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """What the formulas need of a model; ``parameters`` may be known when nothing else is."""

    parameters: float
    hidden: int | None = None
    layers: int | None = None
    heads: int | None = None
    vocabulary: int | None = None


def model_size(config: Mapping[str, Any] | None, parameters: float | None = None) -> ModelSize:
    """Sizes from a configuration's common names.

    Raises:
        ConfigError: there is neither a parameter count nor enough in the configuration.
    """
    values = dict(config or {})
    values = {**values, **values.get("text_config", {})}
    found = {name: next((values[k] for k in keys if isinstance(values.get(k), int)), None) for name, keys in _NAMES.items()}
    hidden, layers, vocabulary = found["hidden"], found["layers"], found["vocabulary"]
    if parameters is None:
        if not (hidden and layers):
            raise ConfigError("the configuration has no hidden size and layer count, and no parameter count was given")
        inner = found["inner"] or 4 * hidden
        gated = 3 if str(values.get("hidden_act", "")) in ("silu", "swiglu") else 2
        parameters = layers * (4 * hidden**2 + gated * hidden * inner) + (vocabulary or 0) * hidden * 2
    return ModelSize(parameters=parameters, hidden=hidden, layers=layers, heads=found["heads"], vocabulary=vocabulary)


def predict_analytic(
    config: Mapping[str, Any] | str | Path | None,
    spec: TrainSpec,
    target: TargetGpu,
    *,
    reason: str = "no reason given",
    parameters: float | None = None,
    measured_context_bytes: int | None = None,
) -> MemoryPrediction:
    """A prediction from formulas; ``reason`` says why there is no trace and is the first of ``not_understood``.

    Args:
        config: the configuration's values, its ``config.json`` or a directory that holds one; None when only ``parameters``
            are known.

    Raises:
        ConfigError: the sizes are not known.
    """
    size = model_size(_values_of(config), parameters)
    states = _states(size, spec)
    activations, logits = _activations(size, spec)
    cublas = 2 * cublas_workspace_bytes(target.capability)
    value = int(sum(states.values()) + activations + logits + cublas)
    moving, resident = activations + logits, sum(states.values())
    parts = [
        UncertainPart(reason="activations by formula, not traced", less_bytes=0.25 * moving, more_bytes=0.8 * moving),
        UncertainPart(
            reason="parameters, gradients and states by formula", less_bytes=0.05 * resident, more_bytes=0.05 * resident
        ),
    ]
    slack = UncertainPart(reason="fragmentation, not simulated", less_bytes=0.02 * value, more_bytes=0.08 * value)
    context = (measured_context_bytes,) * 3 if measured_context_bytes is not None else context_bytes(target.capability)
    context_part = UncertainPart(reason="CUDA context", less_bytes=context[0] - context[1], more_bytes=context[2] - context[0])
    allocated = interval(value, parts)
    reserved = interval(int(1.03 * value), [*parts, slack], floor=allocated.low)
    device = interval(reserved.value + context[0], [*parts, slack, context_part])
    categories = {**states, "activations": activations, "logits": logits, "workspace": cublas}
    return MemoryPrediction(
        allocated=allocated,
        reserved=reserved,
        device=device,
        categories={k: int(v) for k, v in sorted(categories.items(), key=lambda item: -item[1]) if v},
        peak_phase="backward",
        peak_by_phase={"backward": value},
        fits=_fits(device, target),
        reasons=tuple(p.reason for p in (*parts, slack, context_part)),
        not_understood=(f"not traced ({reason}): estimated from formulas", *_unmodelled(size, spec)),
        source="analytic",
    )


def _values_of(config: Mapping[str, Any] | str | Path | None) -> Mapping[str, Any] | None:
    if config is None or isinstance(config, Mapping):
        return config
    path = Path(config)
    path = path / "config.json" if path.is_dir() else path
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{path}: no readable model configuration ({exc})") from exc
    return values if isinstance(values, dict) else None


def _fits(device: Interval, target: TargetGpu) -> bool | None:
    if device.high <= target.usable_bytes:
        return True
    return False if device.low > target.usable_bytes else None


def _unmodelled(size: ModelSize, spec: TrainSpec) -> list[str]:
    lines = []
    if not (size.hidden and size.layers):
        lines.append("hidden size and layers unknown: activations guessed from the parameter count")
    if spec.evaluation is not None and spec.evaluation.keep_logits:
        lines.append("predictions kept by the evaluation are not counted")
    return lines


def _states(size: ModelSize, spec: TrainSpec) -> dict[str, float]:
    pure = spec.precision.endswith("_pure")
    item = 2 if pure or (spec.model_dtype or "").endswith(("16",)) else 4
    total = size.parameters
    trainable = _trainable(size, spec)
    weights = total * item
    if spec.quantization != "none":
        packed = {"int8": 1.0, "nf4": 0.5 + 4 / 64, "fp4": 0.5 + 4 / 64}.get(spec.quantization, 0.5 + 1 / 64)
        embeddings = (size.vocabulary or 0) * (size.hidden or 0) * 2
        weights = max(0.0, total - embeddings) * packed + embeddings * 4
    state_item = next((v for name, v in _STATES.items() if name in spec.optimizer), 2.0 * item)
    shards = spec.world_size if spec.strategy not in ("none", "ddp") else 1
    master = 4.0 * trainable / shards if spec.strategy.startswith("zero") else 0.0
    if spec.strategy.startswith("zero"):
        item, state_item = 2, 8.0
        weights = total * 2
    whole = spec.strategy in ("none", "ddp", "zero1", "zero2")
    found = {
        "parameters": weights if whole else weights / shards + 2 * total * 2 / max(size.layers or 24, 1),
        "gradients": trainable * item / (1 if spec.strategy in ("none", "ddp", "zero1") else shards),
        "optimizer_state": trainable * state_item / shards + master,
    }
    if spec.strategy == "ddp":
        found["communication"] = trainable * item
    return found


def _trainable(size: ModelSize, spec: TrainSpec) -> float:
    if spec.peft is None:
        return size.parameters
    rank = int(spec.peft.get("r", 8))
    if size.hidden and size.layers:
        targets = spec.peft.get("target_modules")
        modules = 7 if targets == "all-linear" else len(targets) if isinstance(targets, (list, tuple)) else 2
        return float(size.layers * modules * 2 * rank * size.hidden)
    return 0.01 * size.parameters


def _activations(size: ModelSize, spec: TrainSpec) -> tuple[float, float]:
    """(activations, logits and their gradients) in bytes of one micro-batch."""
    hidden = size.hidden or int((size.parameters / (12 * 24)) ** 0.5)
    layers = size.layers or 24
    tokens = spec.micro_batch * spec.sequence_length
    half = spec.precision not in ("fp32", "tf32")
    quadratic = 5 * (size.heads or hidden // 64) * spec.sequence_length / hidden if spec.attention == "eager" else 0.0
    layer = tokens * hidden * (34 + quadratic) * (1 if half else 2)
    kept = layers * tokens * hidden * (2 if half else 4) + layer if spec.activation_checkpointing else layers * layer
    heads_of_loss = ("causal_lm", "masked_lm", "seq2seq")
    logits = 3 * 4 * tokens * (size.vocabulary or 0) if spec.task in heads_of_loss else 0
    return float(kept), float(logits)
