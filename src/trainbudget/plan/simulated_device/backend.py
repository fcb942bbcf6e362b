"""A device that behaves like CUDA to torch, without a GPU and without native code.

FakeTensorMode, the autograd engine, activation checkpointing and the foreach and fused optimizers accept a PrivateUse1 backend
that is registered from Python and *named*; ATen treats its tensors as an accelerator's (dropout keeps a bool mask, layer-norm
statistics are fp32). What CUDA does differently is registered on that backend's dispatch keys, so it also holds inside
backward and recomputation: autocast policy (``autocast``) and attention, softmax and fused operators
(``kernels``).

The registration lasts for the life of the process and excludes another PrivateUse1 backend: trace in a process of your own.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import backend_registration

# torch 2.10 is the first that can register a device from Python. Before it the trace runs on fake CPU tensors with CUDA's
# policies put over the CPU's: right for what models use most, but not for everything, so such a trace says that it is not
# portable and its interval is wider.
PORTABLE = hasattr(backend_registration, "_setup_privateuseone_for_python_backend")
NAME = (
    "simgpu" if PORTABLE else "cpu"
)  # what tensor.device.type really is; "cuda" cannot be used, the string parses to the real type
KEY = "PrivateUse1" if PORTABLE else "CPU"  # suffix of the dispatch keys
HALF = (torch.float16, torch.bfloat16)

_registrations: list[torch.library.Library] = []  # torch drops a registration together with its Library


class _DeviceModule:
    """``torch.simgpu``: what torch asks of a device. Without ``_initialized`` checkpointing leaves the generator state alone."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        pass

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return list(HALF)

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        return True

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.zeros(16, dtype=torch.uint8, device="cpu")

    def set_rng_state(self, state: Any, device: Any = None) -> None:
        pass

    def synchronize(self, device: Any = None) -> None:
        pass

    def empty_cache(self) -> None:
        pass


class SimulatedMode(FakeTensorMode):
    """Fake tensors with no real device behind them: constants are made on the host and not copied to a device."""

    avoid_device_init = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled during a trace; the wrapper that keeps dynamo out costs a tenth of the time

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.dispatch(func, types, args, kwargs or {})


def available() -> bool:
    """Whether this torch can register a device from Python; without it traces are approximate."""
    return PORTABLE


def install() -> list[str]:
    """Register the device once per process; returns the CUDA autocast operators of this torch that are not known here."""
    if _registrations:
        return []
    from trainbudget.plan.simulated_device.autocast import install_autocast
    from trainbudget.plan.simulated_device.grouped_matmul import install_grouped_matmul
    from trainbudget.plan.simulated_device.kernels import install_kernels

    library = torch.library.Library("aten", "IMPL")
    _registrations.append(library)
    if PORTABLE:
        backend_registration._setup_privateuseone_for_python_backend(NAME, _DeviceModule())
        rest = torch.library.Library("_", "IMPL")
        _registrations.append(rest)
        rest.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")  # torch does so for its own devices only
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*[Oo]verriding a previously registered kernel.*")  # the CPU's own, on purpose
        unknown = install_autocast(library)
        install_kernels(library)
        if PORTABLE:
            install_grouped_matmul(library)
    return unknown


def is_simulated(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` lives on the simulated device."""
    return tensor.device.type == NAME
