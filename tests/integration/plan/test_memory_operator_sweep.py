"""Every operator of torch's own test suite on the simulated device, against the build's own dispatch.

That is fake CUDA where torch is built with it (no device is needed), else fake CPU. Compared are shapes and dtypes of results.
Differences must be explained here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="torch's operator samples import expecttest")

from trainbudget.plan.simulated_device import backend  # noqa: E402
from trainbudget.plan.train_spec import TargetGpu  # noqa: E402

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not backend.available(), reason="this torch cannot register a device from Python"),
]

REFERENCE = "cuda" if torch.backends.cuda.is_built() else "cpu"
SKIPPED = ("linalg", "fft", "sparse", "special", "masked", "_refs", "signal", "jiterator", "ops.nvprims")
# The attention kernel of the target and its saved sums are the point of the simulated device: tests of whole models cover them.
ATTENTION = (
    "nn.functional.scaled_dot_product_attention",
    "torch.ops.aten._efficient_attention_forward",
    "torch.ops.aten._flash_attention_forward",
)
EXPLAINED = {
    "nn.functional.logsigmoid",  # CUDA keeps no buffer; the CPU does
    "empty_like",  # strides of a dense tensor are kept either way; values are never read
}
ALLOWED_DIFFERENCES = 10  # of about 1300 operator and dtype pairs; more means that a torch release changed something


@contextlib.contextmanager
def quiet_simulation() -> Iterator[Any]:
    from trainbudget.plan.tracing.recorder import Recorder
    from trainbudget.plan.tracing.step import simulated

    recorder = Recorder()
    with simulated(recorder, TargetGpu()):
        yield recorder


def described(value: Any) -> list[tuple[Any, ...]]:
    leaves = torch.utils._pytree.tree_leaves(value)
    return [(tuple(t.shape), t.dtype) for t in leaves if isinstance(t, torch.Tensor)]


def results(op: Any, dtype: Any, device: str) -> list[Any] | str:
    """Result descriptions of every sample; a string when the operator cannot run there."""
    try:
        found = []
        for sample in op.sample_inputs(device, dtype, requires_grad=False):
            with contextlib.suppress(NotImplementedError):
                found.append(described(op(sample.input, *sample.args, **sample.kwargs)))
    except Exception as exc:  # noqa: BLE001 - whatever a sample raises: dynamic shapes, no meta kernel
        return f"{type(exc).__name__}: {exc}"[:200]
    return found


def test_every_operator_gives_the_same_shapes_and_dtypes() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.testing._internal.common_methods_invocations import op_db

    different: dict[str, Any] = {}
    compared = 0
    for op in op_db:
        if op.name.startswith(SKIPPED) or op.name in ATTENTION or op.name in EXPLAINED:
            continue
        for dtype in (torch.float32, torch.bfloat16):
            if dtype not in op.dtypes:
                continue
            with FakeTensorMode(allow_non_fake_inputs=True):
                reference = results(op, dtype, REFERENCE)
            with quiet_simulation():
                ours = results(op, dtype, backend.NAME)
            if isinstance(reference, str) or isinstance(ours, str) or len(reference) != len(ours):
                continue  # cannot run in one of them (dynamic shapes, no shape rule), or has samples for one device only
            compared += 1
            pair = next(((r, o) for r, o in zip(reference, ours, strict=True) if str(r) != str(o)), None)
            if pair is not None:
                different[f"{op.name}.{op.variant_test_name}.{dtype}"] = pair
    print(f"{compared} operator and dtype pairs compared, {len(different)} differ: {different}")
    assert compared > 500
    assert len(different) <= ALLOWED_DIFFERENCES, different


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
