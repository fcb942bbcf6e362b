"""Model FLOPs utilization: useful arithmetic over what the GPUs could do."""

from __future__ import annotations

from trainbudget.engine.timeline import Timeline

#: How a precision may be written, to the key `peak_flops` uses.
_KEYS = {"bfloat16": "bf16", "torch.bfloat16": "bf16", "float16": "fp16", "torch.float16": "fp16", "half": "fp16"}
_KEYS |= {"float32": "fp32", "torch.float32": "fp32", "float": "fp32"}
_NONE = ("", "no", "none", "off", "false")


def model_flops_utilization(timeline: Timeline) -> float | None:
    """FLOPs of the model a second over the peak of the used GPUs in the precision trained in; None unless all are known."""
    flops, step_s, owned = timeline.budget_value("flops_per_step"), timeline.steps.median_s(), timeline.owned
    if flops is None or not step_s or not owned:
        return None
    key = _precision(timeline)
    peaks = [(d.info.peak_flops or {}).get(key or "") for d in owned]
    whole = sum(p for p in peaks if p)
    return flops / step_s / whole if all(peaks) and whole > 0 else None


def _precision(timeline: Timeline) -> str | None:
    model = timeline.model
    if model is None:
        return None
    autocast = (model.autocast or "").lower()
    word = model.parameter_dtype if autocast in _NONE else autocast
    return None if word is None else _KEYS.get(word.lower(), word.lower())
