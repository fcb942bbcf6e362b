"""Which modules a sharding strategy gathers and reduces together, and the marks they leave in a trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from trainbudget.plan.tracing.recorder import Recorder
from trainbudget.plan.tracing.trace import Kind, Parameter
from trainbudget.plan.train_spec import TrainSpec

Units = list[tuple[str, torch.nn.Module]]


def units_for(model: torch.nn.Module, spec: TrainSpec) -> Units:
    """Modules that are sharded together, outer before inner.

    Transformer blocks for FSDP, and with peft under accelerate (its ``fsdp_auto_wrap_policy``) every trainable leaf module
    too; every module for ZeRO-3, which fetches ahead whenever one begins, with parameters of its own or without.
    """
    if spec.strategy == "zero3":
        return [(n, m) for n, m in model.named_modules() if m is not model]
    if spec.strategy not in ("fsdp", "fsdp2"):
        return []
    blocks = _blocks(model)
    if spec.strategy == "fsdp" and spec.peft is not None and not flat_units(spec):
        blocks += [(n, m) for n, m in model.named_modules() if not list(m.children()) and _trains(m)]
    return blocks


def _trains(module: torch.nn.Module) -> bool:
    return any(p.requires_grad for p in module.parameters(recurse=False))


def flat_units(spec: TrainSpec) -> bool:
    """Whether frozen and trained parameters share FSDP1's flat parameters (``use_orig_params``; Lightning's default, not
    accelerate's)."""
    return spec.strategy == "fsdp" and bool(spec.strategy_options.get("use_orig_params", spec.loop == "plain"))


def train_whole_units(model: torch.nn.Module, parameters: list[Parameter], spec: TrainSpec) -> None:
    """All views of a flat parameter require gradients as soon as one parameter does: frozen ones get theirs too."""
    if not flat_units(spec):
        return
    mixed = {p.unit for p in parameters if p.trainable}
    for described, parameter in zip(parameters, model.parameters(), strict=True):
        if described.unit in mixed and parameter.is_floating_point():
            parameter.requires_grad_(True)


def _blocks(model: torch.nn.Module) -> Units:
    """The classes the model declares as not splittable (Hugging Face), else the members of its longest module lists."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    base = getattr(model, "get_base_model", None)
    if base is not None:
        names |= set(getattr(base(), "_no_split_modules", None) or ())
    found = [(n, m) for n, m in model.named_modules() if type(m).__name__ in names]
    blocks = [(n, m) for n, m in found if next(m.parameters(), None) is not None and len(list(m.children())) > 0]
    if blocks:
        return [(n, m) for n, m in blocks if not any(n != o and n.startswith(o + ".") for o, _ in blocks)]
    lists = [(n, m) for n, m in model.named_modules() if isinstance(m, (torch.nn.ModuleList, torch.nn.Sequential)) and len(m) > 1]
    outer = [(n, m) for n, m in lists if not any(n.startswith(o + ".") for o, _ in lists if o != n)]
    return [(f"{n}.{i}", child) for n, m in outer for i, child in enumerate(m) if next(child.parameters(), None) is not None]


class _AfterBackward(torch.autograd.Function):
    """Identity on a unit's inputs; its backward runs once all of the unit's backward has run, as FSDP's own hook does."""

    @staticmethod
    def forward(ctx: Any, callback: Callable[[], None], *inputs: torch.Tensor) -> Any:  # type: ignore[override]
        ctx.callback = callback
        return tuple(t.detach() for t in inputs)  # returned as they are, a module may not change them in place

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:  # type: ignore[override]
        ctx.callback()
        return (None, *gradients)


def attach_units(model: torch.nn.Module, modules: Units, recorder: Recorder) -> list[Any]:
    """Mark in the trace where each unit (0 = the whole model) enters and leaves forward and backward; returns the hooks."""
    hooks = []
    for unit, (_, module) in enumerate([("model", model), *modules]):
        hooks.append(module.register_forward_pre_hook(_before(unit, recorder), with_kwargs=True))
        hooks.append(module.register_forward_hook(_after(unit, recorder)))
    return hooks


def _before(unit: int, recorder: Recorder) -> Callable[..., Any]:
    def hook(module: Any, args: Any, kwargs: Any) -> Any:
        recorder.mark(Kind.UNIT_PRE_FORWARD, unit)
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and t.requires_grad]
        if not tensors or not torch.is_grad_enabled():
            return None
        replaced = iter(_AfterBackward.apply(lambda: recorder.mark(Kind.UNIT_POST_BACKWARD, unit), *tensors))
        wanted = {id(t) for t in tensors}

        def swap(value: Any) -> Any:
            return next(replaced) if isinstance(value, torch.Tensor) and id(value) in wanted else value

        return tree_map(swap, args), tree_map(swap, kwargs)

    return hook


def _after(unit: int, recorder: Recorder) -> Callable[..., None]:
    def hook(module: Any, args: Any, output: Any) -> None:
        recorder.mark(Kind.UNIT_POST_FORWARD, unit)
        for tensor in tree_leaves(output):
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                tensor.register_hook(lambda _: recorder.mark(Kind.UNIT_PRE_BACKWARD, unit))

    return hook
