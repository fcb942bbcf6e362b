"""Around the user's script: no network, no trackers, outputs in a scratch folder, and every CUDA device means the host."""

from __future__ import annotations

import math
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from trainbudget.plan.simulated_device.cuda import Patches, means_cuda


def scratch_folder() -> str:
    """Where the script's outputs go."""
    return os.environ.get("TRAINBUDGET_PLAN_SCRATCH") or tempfile.mkdtemp(prefix="trainbudget-plan-")


class HostMode(TorchFunctionMode):
    """`.cuda()`, `.to("cuda")`, `device="cuda"` leave a tensor where it is; tensors without data stay without data."""

    enabled = True

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = dict(kwargs or {})
        if not self.enabled:
            return func(*args, **kwargs)
        if func in (torch.Tensor.cuda, torch.Tensor.pin_memory):
            return args[0]
        if func is torch.Tensor.to:
            return self._to(func, args, kwargs)
        if func is torch.empty and _is_large_parameter(args, kwargs):
            return func(*args, **{**kwargs, "device": "meta"})
        if means_cuda(kwargs.get("device")) or isinstance(kwargs.get("device"), int):
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)

    @staticmethod
    def _to(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor, rest = args[0], list(args[1:])

        def elsewhere(value: Any) -> bool:
            names_a_device = isinstance(value, (str, int, torch.device)) and not isinstance(value, bool)
            return names_a_device and (tensor.is_meta or means_cuda(value) or isinstance(value, int))

        if rest and elsewhere(rest[0]):
            rest.pop(0)
        if elsewhere(kwargs.get("device")):
            kwargs.pop("device")
        kwargs.pop("non_blocking", None)
        if not any(isinstance(v, (torch.dtype, torch.Tensor, torch.device, str)) for v in (*rest, *kwargs.values())):
            return tensor
        return func(tensor, *rest, **kwargs)


#: Parameters above this are made without data: a model of billions would take the host's memory and minutes to initialise.
_LARGE_BYTES = 4 * 1024**2


def _is_large_parameter(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a layer asks for memory for a large weight (layers allocate with `torch.empty`, then initialise)."""
    shape = args[0] if args and isinstance(args[0], (tuple, list)) else args or kwargs.get("size", ())
    if not all(isinstance(n, int) for n in shape):
        return False
    if math.prod(shape) * (kwargs.get("dtype") or torch.get_default_dtype()).itemsize <= _LARGE_BYTES:
        return False
    frame, depth = sys._getframe(2), 0
    while frame is not None and depth < 6:
        if frame.f_globals.get("__name__", "").startswith(("torch.nn.modules", "transformers.", "peft.", "timm.")):
            return True
        frame, depth = frame.f_back, depth + 1  # type: ignore[assignment]
    return False


def tame_libraries(patches: Patches, on_compile: Callable[[], None]) -> None:
    """Loaders of data run in this process; nothing is compiled, sent or written outside the scratch folder.

    Args:
        on_compile: called when the script asks for compilation.
    """
    loader_init = torch.utils.data.DataLoader.__init__

    def plain_loader(self: Any, *args: Any, **kwargs: Any) -> None:
        # Workers and pinned memory change when batches come, not what they are.
        for name in (
            "persistent_workers",
            "prefetch_factor",
            "multiprocessing_context",
            "timeout",
            "pin_memory_device",
            "in_order",
        ):
            kwargs.pop(name, None)
        if "num_workers" in kwargs:
            kwargs["num_workers"] = 0
        if "pin_memory" in kwargs:
            kwargs["pin_memory"] = False
        loader_init(self, *args, **kwargs)

    patches.put(torch.utils.data.DataLoader, "__init__", plain_loader)

    def left_as_it_is(model: Any = None, **kwargs: Any) -> Any:
        owner = getattr(model, "__self__", model)
        if isinstance(owner, torch.nn.Module) or getattr(model, "__module__", None) == "__main__":
            on_compile()  # libraries decorate functions of their own at import, which says nothing about this script
        return model if model is not None else lambda f: f

    patches.put(torch, "compile", left_as_it_is)
    patches.put(torch, "set_float32_matmul_precision", lambda precision: None)


def limit_data(patches: Patches, limit: int) -> list[float]:
    """Data sets of the `datasets` library keep at most `limit` examples when they are transformed; returns the fractions kept."""
    kept: list[float] = []
    try:
        import datasets
    except ImportError:
        return kept
    mapping = datasets.Dataset.map

    def first(self: Any, *args: Any, **kwargs: Any) -> Any:
        if len(self) > limit:
            kept.append(limit / len(self))
            self = self.select(range(limit))
        kwargs["num_proc"] = None
        return mapping(self, *args, **kwargs)

    patches.put(datasets.Dataset, "map", first)
    return kept


def refuse_own_loops(patches: Patches, catch: Any) -> None:
    """A backward pass outside a trainer is a loop of the script's own: it ends here, before anything is trained."""

    def backward(self: Any, *args: Any, **kwargs: Any) -> None:
        catch.own_loop = "the script has a training loop of its own"
        catch.stop()

    patches.put(torch.Tensor, "backward", backward)
    patches.put(torch.autograd, "backward", backward)
