"""What the user's settings say, in the frameworks' own words: True, False, or None where they do not say."""

from __future__ import annotations

from typing import Any

from trainbudget.engine.timeline import Timeline

_OFF = frozenset({"", "no", "none", "off", "false", "0"})
_FULL_PRECISION = frozenset({"no", "none", "off", "fp32", "float32", "32", "32-true", "torch.float32"})
_HALF_WORDS = ("16", "half", "fp8", "mixed", "transformer-engine")


def settings_of(timeline: Timeline) -> dict[str, Any]:
    return timeline.header.settings or {}


def truth(value: Any) -> bool | None:
    """A setting read as yes or no: `"no"`, `"none"` and 0 are no, any other word is yes."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.strip().lower() not in _OFF
    return bool(value)


def number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def recomputes(timeline: Timeline) -> bool | None:
    """Whether activations are recomputed in the backward pass (activation or gradient checkpointing)."""
    settings = settings_of(timeline)
    found = [truth(settings[name]) for name in ("activation_checkpointing", "gradient_checkpointing") if name in settings]
    fsdp = settings.get("fsdp_config")
    if isinstance(fsdp, dict) and "activation_checkpointing" in fsdp:
        found.append(truth(fsdp["activation_checkpointing"]))
    known = [value for value in found if value is not None]
    return any(known) if known else None


def offloads(timeline: Timeline) -> str | None:
    """What is moved to the host by the settings: optimizer, parameters or activations; None = nothing that we know of."""
    settings = settings_of(timeline)
    deepspeed = settings.get("deepspeed")
    zero = deepspeed.get("zero_optimization") if isinstance(deepspeed, dict) else None
    if isinstance(zero, dict):
        for key, what in (("offload_param", "parameters"), ("offload_optimizer", "optimizer")):
            target = zero.get(key)
            if isinstance(target, dict) and str(target.get("device", "none")).lower() in ("cpu", "nvme"):
                return what
    fsdp = settings.get("fsdp_config")
    if (isinstance(fsdp, dict) and truth(fsdp.get("cpu_offload"))) or "offload" in str(settings.get("fsdp") or ""):
        return "parameters"
    strategy = str(settings.get("strategy") or "")
    if "offload" in strategy:
        return "parameters" if "stage_3" in strategy or "fsdp" in strategy else "optimizer"
    kwargs = settings.get("activation_checkpointing_kwargs")
    if isinstance(kwargs, dict) and truth(kwargs.get("offload")):
        return "activations"
    return None


def full_precision(timeline: Timeline) -> bool | None:
    """Whether matrices are multiplied in plain fp32, neither autocast nor half weights; None where nobody says."""
    model, settings = timeline.model, settings_of(timeline)
    if model is not None and model.parameter_dtype is not None and "32" not in model.parameter_dtype:
        return False
    autocast = str(model.autocast).lower() if model is not None and model.autocast is not None else None
    if autocast is not None:
        return autocast in _FULL_PRECISION
    if "precision" in settings:  # Lightning
        word = str(settings["precision"]).lower()
        return word in _FULL_PRECISION or not any(half in word for half in _HALF_WORDS)
    flags = [truth(settings[name]) for name in ("bf16", "fp16") if name in settings]
    if any(flags):
        return False
    weights_known = model is not None and model.parameter_dtype is not None
    return True if len(flags) == 2 and weights_known else None


def tf32(timeline: Timeline) -> bool | None:
    """Whether TF32 is allowed, where the settings or the environment say."""
    settings, environment = settings_of(timeline), timeline.header.environment or {}
    if settings.get("tf32") is not None:
        return truth(settings["tf32"])
    word = environment.get("float32_matmul_precision")
    return None if word is None else str(word).lower() in ("high", "medium")


def accumulation(timeline: Timeline) -> int | None:
    """Micro-batches per optimizer step, as set."""
    settings = settings_of(timeline)
    for name in ("gradient_accumulation_steps", "accumulate_grad_batches"):
        value = number(settings.get(name))
        if value is not None and value >= 1:
            return int(value)
    return None
