"""Hugging Face ``optim`` names as optimizers that can run on fake tensors.

Each entry is the real torch or transformers optimizer where it runs on fake tensors; optimizers of libraries with their own
CUDA kernels are stand-ins that allocate what the library's step allocates and no more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from trainbudget.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerChoice:
    """An optimizer and what a sharding strategy needs to know about it.

    Attributes:
        state_tensors: full-size state tensors a parameter.
        state_item_bytes: bytes an element of state; None = as the parameter.
        scratch: ``foreach`` (temporaries for all parameters at once), ``loop`` (of the largest), ``fused`` or ``none``.
        exact: whether the trace runs the real optimizer or a stand-in that is known to allocate the same.
    """

    build: Callable[[Sequence[Any]], Any]
    state_tensors: int
    state_item_bytes: float | None = None
    scratch: str = "foreach"
    exact: bool = True
    note: str | None = None


class BlockwiseAdam(torch.optim.Optimizer):
    """Adam with 8-bit state in blocks, as bitsandbytes and torchao allocate it: two uint8 tensors and an fp32 scale a block.

    Tensors below ``smallest`` elements keep 32-bit state (bitsandbytes ``min_8bit_size``). The update runs in one kernel, in
    place.
    """

    def __init__(self, params: Any, *, tensors: int = 2, block: int = 256, smallest: int = 4096, bits: int = 8) -> None:
        super().__init__(list(params), {})
        self._tensors = tensors
        self._block = block
        self._smallest = smallest
        self._bits = bits

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and not self.state[p]:
                    self.state[p] = self._state_of(p)

    def _state_of(self, p: torch.Tensor) -> dict[str, torch.Tensor]:
        state: dict[str, torch.Tensor] = {}
        for i in range(self._tensors):
            if p.numel() < self._smallest:
                state[f"state{i}"] = torch.zeros_like(p, dtype=torch.float32)
                continue
            size = p.numel() * self._bits // 8
            state[f"state{i}"] = torch.zeros(size, dtype=torch.uint8, device=p.device)
            state[f"absmax{i}"] = torch.zeros(-(-p.numel() // self._block), dtype=torch.float32, device=p.device)
        return state


class KernelAdam(torch.optim.Optimizer):
    """State of 32 bits an element, updated in place by one kernel; ``paged`` state lives in managed memory, outside torch's
    allocator."""

    def __init__(self, params: Any, *, tensors: int = 2, paged: bool = False) -> None:
        super().__init__(list(params), {})
        self._tensors = tensors
        self._paged = paged

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and not self.state[p]:
                    # bitsandbytes pages only tensors of 1e5 elements and more (get_state_buffer)
                    paged = self._paged and p.numel() >= 100_000
                    self.state[p] = (
                        {} if paged else {f"state{i}": torch.zeros_like(p, dtype=torch.float32) for i in range(self._tensors)}
                    )
                    self.state[p]["step"] = 1  # type: ignore[assignment]


def _adamw(params: Sequence[Any], **options: Any) -> Any:
    return torch.optim.AdamW(params, lr=1e-4, **options)


def _adafactor(params: Sequence[Any]) -> Any:
    from transformers.optimization import Adafactor

    return Adafactor(params, lr=1e-3, scale_parameter=False, relative_step=False)


def _choices() -> dict[str, OptimizerChoice]:
    adamw = OptimizerChoice(build=partial(_adamw, foreach=True), state_tensors=2)
    eight_bit = OptimizerChoice(build=BlockwiseAdam, state_tensors=2, state_item_bytes=1 + 4 / 256, scratch="none")
    paged_8bit = OptimizerChoice(
        build=partial(KernelAdam, paged=True),
        state_tensors=0,
        scratch="none",
        note="paged optimizer state lives in managed memory: it is not part of the allocated bytes",
    )
    fused = OptimizerChoice(build=partial(_adamw, fused=True), state_tensors=2, scratch="fused")
    kernel = OptimizerChoice(build=KernelAdam, state_tensors=2, state_item_bytes=4, scratch="none")
    one_8bit = OptimizerChoice(
        build=partial(BlockwiseAdam, tensors=1), state_tensors=1, state_item_bytes=1 + 4 / 256, scratch="none"
    )
    return {
        "adamw_torch": adamw,
        "adamw_torch_fused": fused,
        "adamw_loop": OptimizerChoice(build=partial(_adamw, foreach=False), state_tensors=2, scratch="loop"),
        "adamw_hf": OptimizerChoice(build=partial(_adamw, foreach=False), state_tensors=2, scratch="loop"),
        "adamw_apex_fused": kernel,
        "adamw_bnb_8bit": eight_bit,
        "adamw_8bit": eight_bit,
        "ademamix_8bit": OptimizerChoice(
            build=partial(BlockwiseAdam, tensors=3), state_tensors=3, state_item_bytes=1 + 4 / 256, scratch="none"
        ),
        "adamw_torch_8bit": eight_bit,
        "adamw_torch_4bit": OptimizerChoice(
            build=partial(BlockwiseAdam, bits=4, block=128),
            state_tensors=2,
            state_item_bytes=0.5 + 4 / 128,
            scratch="none",
            exact=False,
            note="optimizer adamw_torch_4bit: state sizes by block arithmetic, its temporaries are not modelled",
        ),
        "paged_adamw_8bit": paged_8bit,
        "paged_adamw_32bit": paged_8bit,
        "paged_adamw": paged_8bit,
        "lion_8bit": one_8bit,
        "lion_32bit": OptimizerChoice(build=partial(KernelAdam, tensors=1), state_tensors=1, state_item_bytes=4, scratch="none"),
        "paged_lion_8bit": paged_8bit,
        "paged_lion_32bit": paged_8bit,
        "rmsprop_bnb": OptimizerChoice(build=partial(KernelAdam, tensors=1), state_tensors=1, state_item_bytes=4, scratch="none"),
        "rmsprop_bnb_8bit": one_8bit,
        "adafactor": OptimizerChoice(build=_adafactor, state_tensors=0, scratch="loop"),
        "sgd": OptimizerChoice(build=lambda p: torch.optim.SGD(p, lr=1e-3, foreach=True), state_tensors=0, scratch="none"),
        "sgd_momentum": OptimizerChoice(
            build=lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9, foreach=True), state_tensors=1, scratch="none"
        ),
        "adagrad": OptimizerChoice(build=lambda p: torch.optim.Adagrad(p, lr=1e-3, foreach=True), state_tensors=1),
        "rmsprop": OptimizerChoice(build=lambda p: torch.optim.RMSprop(p, lr=1e-3, foreach=True), state_tensors=1),
    }


def optimizer_of(name: str) -> OptimizerChoice:
    """The optimizer behind a Hugging Face ``optim`` name.

    An optimizer that is not known is replaced by AdamW with 32-bit state (the most common upper bound) and carries a note that
    says so.

    Raises:
        ConfigError: the name is empty.
    """
    if not name:
        raise ConfigError("optimizer needs a name, for example adamw_torch")
    choices = _choices()
    if name in choices:
        return choices[name]
    stand_in = choices["adamw_torch"]
    return OptimizerChoice(
        build=stand_in.build,
        state_tensors=2,
        exact=False,
        note=f"optimizer {name} is not modelled: AdamW with full state assumed",
    )
