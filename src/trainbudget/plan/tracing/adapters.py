"""Put the user's adapter on a model with peft itself, as their script would."""

from __future__ import annotations

from typing import Any

import torch

from trainbudget.errors import ConfigError
from trainbudget.plan.train_spec import TrainSpec

_TASKS = {
    "causal_lm": "CAUSAL_LM",
    "seq2seq": "SEQ_2_SEQ_LM",
    "sequence_classification": "SEQ_CLS",
    "token_classification": "TOKEN_CLS",
    "question_answering": "QUESTION_ANS",
}


def with_adapter(model: torch.nn.Module, spec: TrainSpec) -> torch.nn.Module:
    """The model wrapped by ``peft.get_peft_model``, prepared first when it is quantized.

    Raises:
        ConfigError: peft refuses the settings, with its reason.
    """
    if spec.quantization != "none":
        from trainbudget.plan.quantized import install_stand_in

        install_stand_in(spec.quantization_stack)
    import peft

    if spec.quantization != "none" and spec.prepare_for_kbit_training:
        checkpointed = spec.activation_checkpointing is not None
        model = peft.prepare_model_for_kbit_training(
            model,
            use_gradient_checkpointing=checkpointed,
            gradient_checkpointing_kwargs={"use_reentrant": spec.activation_checkpointing == "reentrant"}
            if checkpointed
            else None,
        )
    try:
        config = adapter_config(spec.peft or {}, spec.task)
        return peft.get_peft_model(
            model, config, autocast_adapter_dtype=bool((spec.peft or {}).get("autocast_adapter_dtype", True))
        )
    except (ValueError, TypeError, KeyError) as exc:
        raise ConfigError(f"peft: {' '.join(str(exc).split())[:250]}") from exc


def adapter_config(values: dict[str, Any], task: str) -> Any:
    """peft's own configuration object; ``dora`` is LoRA with ``use_dora``."""
    import peft

    values = {k: v for k, v in values.items() if k != "autocast_adapter_dtype"}
    kind = str(values.pop("type", values.pop("peft_type", "lora"))).lower().replace("-", "_")
    if kind == "dora":
        kind, values["use_dora"] = "lora", True
    names = {str(getattr(k, "value", k)).lower(): v for k, v in peft.mapping.PEFT_TYPE_TO_CONFIG_MAPPING.items()}
    if kind not in names:
        raise ConfigError(f"peft type {kind!r} is unknown to the installed peft; known: {', '.join(sorted(names))}")
    if task in _TASKS:
        values.setdefault("task_type", _TASKS[task])
    return names[kind](**values)
