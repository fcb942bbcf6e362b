"""What a script was about to train, caught at the door of its training loop, and its step traced at other shapes and settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map

from trainbudget.plan.memory import Trace
from trainbudget.plan.quantized import QuantState
from trainbudget.plan.script.host import HostMode, scratch_folder
from trainbudget.plan.script.models import BuiltModels
from trainbudget.plan.script.protocol import Facts, Question
from trainbudget.plan.script.untouched import Untouched
from trainbudget.plan.simulated_device.backend import NAME
from trainbudget.plan.tracing.step import to_simulated


@dataclass(slots=True, kw_only=True)
class Captured:
    """The live objects of a caught script, in its own process."""

    facts: Facts
    trace: Callable[[Question], Trace]
    prepare: Callable[[Question], None] = lambda question: None  # imports what the trace will need, before it is forked off


class Stop(BaseException):
    """Ends the script at the training loop; not an Exception, so that no `except Exception` of the script swallows it."""


@dataclass(slots=True, kw_only=True)
class Catch:
    """Where the interceptors put what they find (the first one wins), and what they know beside the script."""

    built: BuiltModels = field(default_factory=BuiltModels)
    host: HostMode = field(default_factory=HostMode)
    world_size: int = 1
    prepare_data: bool = True
    kept: list[float] = field(default_factory=list)  # fractions of data sets that `--max-examples` kept
    compiled: bool = False
    captured: Captured | None = None
    refused: str | None = None
    own_loop: str | None = None
    facts: Facts | None = None  # of a refused run, for the analytic answer
    notes: list[str] = field(default_factory=list)
    untouched: Untouched = field(init=False)

    def __post_init__(self) -> None:
        self.untouched = Untouched(Path(scratch_folder()), self._refuse)

    def _refuse(self, why: str) -> None:
        self.refused = f"{why}: it is not run again beside the training"
        self.stop()

    def note(self, text: str) -> None:
        """Remember one line for the answer, once."""
        if text not in self.notes:
            self.notes.append(text)

    def asked_to_compile(self) -> None:
        """The script compiles its model (or a part of it); the step is traced as eager code."""
        self.compiled = True

    def stop(self) -> None:
        """Leave the script."""
        raise Stop


def tensors_of(batch: Any) -> list[torch.Tensor]:
    """Every tensor in a nest."""
    return [t for t in torch.utils._pytree.tree_leaves(batch) if isinstance(t, torch.Tensor)]


def shape_of(batch: Any) -> tuple[int | None, int | None]:
    """Examples and tokens an example of a batch; None where it has no such meaning."""
    ids = None
    if hasattr(batch, "get"):
        ids = next(
            (batch[k] for k in ("input_ids", "input_features", "input_values", "decoder_input_ids") if batch.get(k) is not None),
            None,
        )
    if isinstance(ids, torch.Tensor) and ids.ndim >= 2:
        return int(ids.shape[0]), int(ids.shape[1])
    found = tensors_of(batch)
    if not found or found[0].ndim == 0:
        return None, None
    integers = [t for t in found if t.ndim == 2 and not t.is_floating_point()]
    return int(found[0].shape[0]), int(integers[0].shape[1]) if integers else None


def reshaped(batch: Any, old: tuple[int | None, int | None], new: tuple[int | None, int | None]) -> Any:
    """The batch with other numbers of examples and tokens: every dimension that counts them is scaled; values are dropped."""

    def one(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.ndim == 0:
            return value
        shape = list(value.shape)
        if old[0] and new[0] and shape[0] % old[0] == 0:  # pairs of preference data are concatenated: twice the examples
            shape[0] = shape[0] // old[0] * new[0]
        if old[1] and new[1]:
            shape[1:] = [new[1] if s == old[1] else s for s in shape[1:]]
        return value if shape == list(value.shape) else torch.empty(shape, dtype=value.dtype, device="meta")

    if isinstance(batch, torch.Tensor):
        return one(batch)
    return type(batch)({k: one(v) for k, v in batch.items()}) if isinstance(batch, dict) else tree_map(one, batch)


class WithCompanions(torch.nn.Module):
    """A model and the frozen ones that stand beside it (a reference or teacher): all of them take memory."""

    def __init__(self, main: torch.nn.Module, companions: list[torch.nn.Module]) -> None:
        super().__init__()
        self.main = main
        self.companions = torch.nn.ModuleList(companions).requires_grad_(False)


def on_simulated_device(*modules: torch.nn.Module) -> None:
    """Move modules to the device of the running trace, scales of quantized layers too (they are no parameters)."""
    for module in modules:
        to_simulated(module)
        for layer in module.modules():
            state = getattr(layer, "quant_state", None)
            if isinstance(state, QuantState):
                layer.quant_state = QuantState(state.shape, state.dtype, NAME, state.nested)  # type: ignore[assignment]
                layer.weight.quant_state = layer.quant_state  # type: ignore[union-attr]
