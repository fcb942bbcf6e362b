"""Every operator of torch's own test suite on the simulated device, against the build's own dispatch.

That is fake CUDA where torch is built with it (no device is needed), else real CPU tensors. The samples are torch's, made on the
CPU, so both run the same ones. Compared are shape, dtype and storage bytes of every result. Differences must be explained here.

One test a family of operators; ``TRAINBUDGET_SWEEP_EVERY=8`` takes every eighth operator of each, the counts asked for shrink
along.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="torch's operator samples import expecttest")

from trainbudget.plan.simulated_device import backend  # noqa: E402
from trainbudget.plan.train_spec import TargetGpu  # noqa: E402

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not backend.available(), reason="this torch cannot register a device from Python"),
]

REFERENCE = "cuda" if torch.backends.cuda.is_built() else "cpu"
EVERY = max(1, int(os.environ.get("TRAINBUDGET_SWEEP_EVERY", "1")))
SKIPPED = ("sparse", "_refs", "jiterator", "ops.nvprims")  # no storage of its own to follow, or not for eager code
_STATISTICS = "CUDA keeps statistics in fp32, one a channel also in evaluation; the CPU in the input's dtype, none in evaluation"
_ROWS = "how many elements are chosen depends on data: as many as there could be"
# What may differ from the CPU, with the reason.
EXPLAINED = {
    "native_layer_norm": _STATISTICS,
    "native_batch_norm": _STATISTICS,
    "_native_batch_norm_legit": _STATISTICS,
    "_batch_norm_with_update": _STATISTICS,
    "argwhere": _ROWS,
    "nonzero": _ROWS,
    "__getitem__": _ROWS,
    "masked_select": _ROWS,
    "combinations": _ROWS,
    "unique": _ROWS,
    "unique_consecutive": _ROWS,
    "nn.functional.unfold": "the result begins as large as the input; windows with gaps leave less, in the same storage",
}
# What cannot run on the simulated device, with the reason: a trace then says so.
CANNOT = {
    "geqrf": "torch has no shape rule for it outside its own devices",
    "histogram": "no kernel on CUDA either",
    "histogramdd": "no kernel on CUDA either",
    "to_sparse": "sparse tensors have no storage of their own to follow",
    "linalg.lstsq": "shape depends on data",
    "repeat_interleave": "repeats in a tensor: the shape depends on data, without bound",
    "tensor_split": "indices in a tensor must stay on the host, the sweep puts every tensor on the device",
    "nn.functional.ctc_loss": "shape depends on data",
    "nn.functional.gaussian_nll_loss": "refuses negative variances after looking at them",
}


_LETTERS = (("a to c", "c"), ("d to h", "h"), ("i to m", "m"), ("n to r", "r"), ("s to z", "~"))
_PREFIXES = ("fft", "linalg", "masked", "nn.functional", "signal.windows", "special")


def family_of(name: str) -> str:
    """``linalg``, ``fft``, ``nn.functional`` and the like by their prefix; what has none by its first letter."""
    prefix, dot, _ = name.rpartition(".")
    if dot:
        return prefix if prefix in _PREFIXES else "other"
    first = name.lstrip("_")[:1]
    return next(part for part, last in _LETTERS if first <= last)


# Pairs of operator and dtype compared on torch 2.13; fewer than four in five means that a release changed something.
COMPARED = {
    "a to c": 170,
    "d to h": 132,
    "fft": 22,
    "i to m": 166,
    "linalg": 50,
    "masked": 38,
    "n to r": 158,
    "nn.functional": 222,
    "other": 2,
    "s to z": 192,
    "signal.windows": 11,
    "special": 42,
}
ENOUGH = 0.8


@contextlib.contextmanager
def quiet_simulation() -> Iterator[Callable[[Any], Any]]:
    """The simulated device; gives a function that puts a nest of tensors there."""
    from trainbudget.plan.tracing.recorder import Recorder
    from trainbudget.plan.tracing.step import simulated
    from trainbudget.plan.tracing.trace import Phase

    recorder = Recorder()
    with simulated(recorder, TargetGpu()):
        recorder.enter_phase(Phase.FORWARD)
        yield on_device(backend.NAME)


def on_device(device: str) -> Callable[[Any], Any]:
    """Puts a nest of tensors on ``device`` with their strides, values lost; views of one storage become tensors of their own."""

    def moved(value: Any) -> Any:
        if isinstance(value, (str, torch.device)) and str(value) == "cpu":
            return device
        if not isinstance(value, torch.Tensor):
            return value
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=device)

    return lambda nest: torch.utils._pytree.tree_map(moved, nest)


def copied(nest: Any) -> Any:
    """The same nest with tensors of its own: an operator may write into its arguments."""

    def copy(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if torch._debug_has_internal_overlap(value):
            return value.clone()
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype).copy_(value)

    return torch.utils._pytree.tree_map(copy, nest)


def described(value: Any) -> list[tuple[Any, ...]]:
    """Shape, dtype and storage bytes of each tensor."""
    leaves = torch.utils._pytree.tree_leaves(value)
    return [(tuple(t.shape), t.dtype, t.untyped_storage().nbytes()) for t in leaves if isinstance(t, torch.Tensor)]


def results(op: Any, samples: list[Any], place: Callable[[Any], Any]) -> list[Any]:
    """What each sample gives: descriptions, or the reason why it cannot run there."""
    found: list[Any] = []
    for sample in samples:
        try:
            value, args, kwargs = place((sample.input, sample.args, sample.kwargs))
            found.append(described(op(value, *args, **kwargs)))
        except Exception as exc:  # noqa: BLE001 - whatever a sample raises: dynamic shapes, no shape rule
            found.append(f"{type(exc).__name__}: {exc}"[:200])
    return found


def reference_results(op: Any, samples: list[Any]) -> list[Any]:
    """The build's own: fake CUDA, or the CPU itself."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    if REFERENCE == "cpu":
        return results(op, samples, copied)
    with FakeTensorMode(allow_non_fake_inputs=True):
        return results(op, samples, on_device("cuda"))


def samples_of(op: Any, dtype: Any) -> list[Any]:
    """torch's samples, straight from their maker: the public method looks for the calling test in the sources of the whole stack
    every time, which takes hours under pytest."""
    return list(op.sample_inputs_func(op, "cpu", dtype, requires_grad=False))


def operators() -> dict[str, list[Any]]:
    """Every operator by family, in torch's order."""
    from torch.testing._internal.common_methods_invocations import op_db

    found: dict[str, list[Any]] = {}
    for op in op_db:
        if not op.name.startswith(SKIPPED):
            found.setdefault(family_of(op.name), []).append(op)
    return found


def compare(op: Any, dtype: Any) -> tuple[int, list[Any], str]:
    """(samples that run in both, those whose results differ, why others cannot run on the simulated device)."""
    samples = samples_of(op, dtype)
    reference = reference_results(op, samples)
    with quiet_simulation() as place:
        ours = results(op, samples, place)
    both = [(r, o) for r, o in zip(reference, ours, strict=True) if not isinstance(r, str) and not isinstance(o, str)]
    failed = next((o for r, o in zip(reference, ours, strict=True) if isinstance(o, str) and not isinstance(r, str)), "")
    return len(both), [pair for pair in both if str(pair[0]) != str(pair[1])], failed


@pytest.mark.parametrize("family", sorted(COMPARED))
def test_every_operator_gives_the_same_results(family: str) -> None:
    members = operators()[family]
    different: dict[str, Any] = {}
    cannot: dict[str, str] = {}
    compared, thinned = 0, members[::EVERY]
    for op in thinned:
        for dtype in (torch.float32, torch.bfloat16):
            if dtype not in op.dtypes:
                continue
            name = f"{op.name}.{op.variant_test_name}.{dtype}"
            ran, found, failed = compare(op, dtype)
            compared += ran > 0
            if found and op.name not in EXPLAINED:
                different[name] = found[0]
            if failed and op.name not in CANNOT:
                cannot[name] = failed
    print(f"{family}: {len(thinned)} operators, {compared} pairs compared, {len(different)} differ, {len(cannot)} cannot run")
    assert not different
    assert not cannot
    # Thinned out, a family may be left with the operators that have one dtype or none.
    assert compared >= ENOUGH * COMPARED[family] * len(thinned) / len(members) - (2 if EVERY > 1 else 0)


def test_every_family_is_swept() -> None:
    assert set(operators()) == set(COMPARED)


@pytest.mark.skipif(REFERENCE != "cuda", reason="needs a CUDA build of torch (no device)")
def test_the_operators_that_are_fused_only_on_cuda_are_all_known() -> None:
    """Composite operators with a kernel for CUDA alone: autograd takes their fused formula there."""
    from trainbudget.plan.simulated_device.kernels import FUSED_ON_CUDA

    composite = {
        name.removeprefix("aten::")
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::")
        and torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")
        and torch._C._dispatch_has_kernel_for_dispatch_key(name, "CUDA")
        and not torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU")
    }
    assert composite == set(FUSED_ON_CUDA)
