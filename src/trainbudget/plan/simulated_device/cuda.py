"""Make user code see a CUDA device during a trace: ``is_cuda``, ``device.type``, ``torch.cuda.is_available()``,
``device="cuda"``.

torch's own Python code keeps seeing the simulated device (it must), so a tensor's ``device`` answers by who asks: modules of
torch and of trainbudget get the truth, everybody else gets ``cuda:0``. Everything is put back when the context ends.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

from trainbudget.plan.simulated_device.autocast import forget_weight_casts
from trainbudget.plan.simulated_device.backend import NAME
from trainbudget.plan.train_spec import TargetGpu

_CUDA = torch.device("cuda", 0)


def means_cuda(device: Any) -> bool:
    """Whether a device argument names CUDA."""
    if type(device) is torch.device:
        return device.type == "cuda"
    return type(device) is str and device.split(":", 1)[0] == "cuda"


class CudaAlias(TorchFunctionMode):
    """``device="cuda"``, ``.to("cuda")`` and ``.cuda()`` mean the simulated device."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            func, args, kwargs = torch.Tensor.to, (args[0], NAME), {}
        if means_cuda(kwargs.get("device")):
            kwargs["device"] = NAME
        if len(args) > 1 and means_cuda(args[1]):
            args = (args[0], NAME, *args[2:])
        return func(*args, **kwargs)


class Patches:
    """Attributes that are replaced and put back in reverse order."""

    def __init__(self) -> None:
        self._saved: list[tuple[Any, str, Any, bool]] = []

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute (also one that is not there)."""
        own = name in vars(owner) if hasattr(owner, "__dict__") else True
        self._saved.append((owner, name, getattr(owner, name, None), own))
        setattr(owner, name, value)

    def put_back(self) -> None:
        """Undo every replacement."""
        while self._saved:
            owner, name, value, own = self._saved.pop()
            if own:
                setattr(owner, name, value)
            else:
                delattr(owner, name)


@contextlib.contextmanager
def cuda_answers(target: TargetGpu, devices: int = 1, empty_cache: Callable[[], None] | None = None) -> Iterator[None]:
    """``torch.cuda`` answers for the target card: availability, capability, memory, name, streams; no driver is touched."""
    importlib.import_module(
        "torch._dynamo"
    )  # its tables are built from torch.cuda's functions at import: before they are replaced
    patches = Patches()
    for name, answer in _cuda_functions(target, devices).items():
        patches.put(torch.cuda, name, answer)
    if empty_cache is not None:
        patches.put(torch.cuda, "empty_cache", empty_cache)
    patches.put(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    if torch.version.cuda is None:
        patches.put(torch.version, "cuda", "12.8")
    try:
        yield
    finally:
        patches.put_back()


def _cuda_functions(target: TargetGpu, devices: int) -> dict[str, Callable[..., Any]]:
    major, minor = target.compute_capability
    properties = SimpleNamespace(
        name=target.name, major=major, minor=minor, total_memory=target.memory_bytes, multi_processor_count=108, warp_size=32
    )

    def nothing(*args: Any, **kwargs: Any) -> None:
        return None

    def zero(*args: Any, **kwargs: Any) -> int:
        return 0

    def no_state(*args: Any, **kwargs: Any) -> torch.Tensor:
        return torch.zeros(16, dtype=torch.uint8, device="cpu")

    answers: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: devices,
        "is_bf16_supported": lambda including_emulation=True: target.capability >= 80 or including_emulation,
        "is_tf32_supported": lambda: target.capability >= 80,
        "get_device_name": lambda device=None: target.name,
        "get_device_capability": lambda device=None: (major, minor),
        "get_device_properties": lambda device=None: properties,
        "get_arch_list": lambda: [f"sm_{target.capability}"],
        "mem_get_info": lambda device=None: (target.usable_bytes, target.memory_bytes),
        "memory_stats": lambda device=None: {},
        "get_rng_state": no_state,
        "get_rng_state_all": lambda: [no_state()],
        "current_stream": lambda device=None: _Stream(),
        "default_stream": lambda device=None: _Stream(),
        "Stream": _Stream,
        "Event": _Event,
        "stream": lambda stream=None: contextlib.nullcontext(),
        "device": lambda device=None: contextlib.nullcontext(),
    }
    for name in ("current_device", "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
        answers[name] = zero
    for name in [
        "init",
        "_lazy_init",
        "set_device",
        "synchronize",
        "empty_cache",
        "ipc_collect",
        "reset_peak_memory_stats",
        "reset_max_memory_allocated",
        "set_rng_state",
        "set_rng_state_all",
        "manual_seed",
        "manual_seed_all",
        "set_per_process_memory_fraction",
        "set_stream",
    ]:
        answers[name] = nothing
    return answers


class _Stream:
    """A CUDA stream on which everything has already happened."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.device = _CUDA

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def synchronize(self) -> None:
        pass

    def wait_stream(self, stream: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    def record_event(self, event: Any = None) -> _Event:
        return _Event()

    def query(self) -> bool:
        return True


class _Event:
    """A CUDA event that is complete."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        pass

    def wait(self, stream: Any = None) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: Any) -> float:
        return 1.0


def _inside_torch(depth: int = 2) -> bool:
    name = sys._getframe(depth).f_globals.get("__name__", "")
    return name == "torch" or name.startswith(("torch.", "trainbudget."))


def _device_seen_by_caller(self: Any) -> torch.device:
    if self.fake_mode.in_kernel_invocation:
        return torch.device("meta")
    device = self.fake_device
    return _CUDA if device.type == NAME and not _inside_torch() else device


def _is_cuda(self: torch.Tensor) -> bool:
    if _inside_torch():
        return False
    device = self.fake_device if isinstance(self, FakeTensor) else self.device
    return device.type in (NAME, "cuda")


def _overwriting_apply() -> Callable[..., torch.nn.Module]:
    """A ``nn.Module._apply`` that overwrites instead of swapping: a swap fails when something holds a weak reference, as peft
    does.

    Parameters that are tied stay tied: within one outermost call each is moved once.
    """
    moved: dict[int, tuple[torch.nn.Parameter, torch.nn.Parameter]] = {}
    depth = 0

    def apply(self: torch.nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> torch.nn.Module:
        nonlocal depth
        depth += 1
        try:
            if recurse:
                for child in self.children():
                    child._apply(fn)
            for key, parameter in self._parameters.items():
                if parameter is not None:
                    self._parameters[key] = _moved(parameter, fn)
            for key, buffer in self._buffers.items():
                if buffer is not None:
                    self._buffers[key] = fn(buffer)
        finally:
            depth -= 1
            if depth == 0:
                moved.clear()
        return self

    def _moved(parameter: torch.nn.Parameter, fn: Callable[[torch.Tensor], torch.Tensor]) -> torch.nn.Parameter:
        known = moved.get(id(parameter))
        if known is None:
            with torch.no_grad():
                value = fn(parameter)
            fresh = parameter
            if value is not parameter:
                fresh = torch.nn.Parameter(value.detach(), requires_grad=parameter.requires_grad)
                fresh.__dict__.update({k: v for k, v in vars(parameter).items() if k not in vars(fresh)})
            known = moved[id(parameter)] = (parameter, fresh)  # holds the old one: its id must not be given to another
        return known[1]

    return apply


@contextlib.contextmanager
def user_sees_cuda(target: TargetGpu, empty_cache: Callable[[], None] | None = None) -> Iterator[None]:
    """Everything user code asks about devices is answered as on the target; torch's fast optimizer paths accept fake tensors.

    Args:
        empty_cache: called when user code gives unused segments back.
    """
    importlib.import_module("torch._dynamo")
    patches = Patches()

    def renamed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            args = tuple(NAME if isinstance(a, str) and a == "cuda" else a for a in args)
            return function(*args, **{k: NAME if isinstance(v, str) and v == "cuda" else v for k, v in kwargs.items()})

        return call

    for name in ("get_autocast_dtype", "set_autocast_enabled", "set_autocast_dtype"):
        patches.put(torch, name, renamed(getattr(torch, name)))
    enabled, clear, init = torch.is_autocast_enabled, torch.clear_autocast_cache, torch.autocast.__init__

    def clear_both() -> None:
        forget_weight_casts()
        clear()

    def autocast_init(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        init(self, NAME if device_type == "cuda" else device_type, *args, **kwargs)

    patches.put(torch, "is_autocast_enabled", lambda device="cuda": enabled(NAME if device == "cuda" else device))
    patches.put(torch, "clear_autocast_cache", clear_both)
    patches.put(torch.autocast, "__init__", autocast_init)
    patches.put(torch.nn.Module, "_apply", _overwriting_apply())
    patches.put(torch.Tensor, "is_cuda", property(_is_cuda))
    patches.put(FakeTensor, "device", property(_device_seen_by_caller))
    hugging_face = sys.modules.get("transformers.utils.import_utils")
    if hasattr(hugging_face, "is_fake_tensor"):
        # transformers builds full attention masks while something is exported; a real step skips them and takes the flash kernel.
        patches.put(hugging_face, "is_fake_tensor", lambda value: False)
    _shape_rules_of_cuda(patches)
    fast_types = _fast_types()
    for types in fast_types:
        types.append(FakeTensor)
    try:
        with cuda_answers(target, empty_cache=empty_cache):
            yield
    finally:
        for types in fast_types:
            types.remove(FakeTensor)
        patches.put_back()
        forget_weight_casts()


def _shape_rules_of_cuda(patches: Patches) -> None:
    """torch's shape rules lay results out as the device's libraries do and ask which it is: cuSOLVER's svd gives Vh by rows, so
    that slices of it are views that keep the whole; LAPACK's gives it by columns, and they are copied."""
    rules = importlib.import_module("torch._meta_registrations")
    hint = getattr(rules, "device_hint", None)
    if hint is not None:
        patches.put(rules, "device_hint", lambda tensor: "cuda" if hint(tensor) == NAME else hint(tensor))


def _fast_types() -> list[list[type]]:
    """torch's lists of tensor types that foreach and fused kernels accept; a fake tensor stands for a plain one."""
    found = []
    for module in ("torch.optim.optimizer", "torch.utils._foreach_utils"):
        types = getattr(sys.modules.get(module), "_foreach_supported_types", None)
        if isinstance(types, list):
            found.append(types)
    return found
