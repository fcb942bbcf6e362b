"""Stand-ins for bitsandbytes layers: they keep and allocate what the library's layers do, version by version, and compute
nothing.

Read in bitsandbytes 0.43.1, 0.43.2, 0.44.1 and 0.49.2 (``autograd/_functions.py``, ``nn/modules.py``, ``functional.py``):

* 4-bit: packed weights, one fp32 scale for 64 weights; nested (double) quantization stores the scales in 8 bits with one fp32
for 256 of
  them and an offset. A product dequantises the whole weight into its original dtype, casts it to the input's dtype if that
  differs, and frees it. Up to 0.43.1 the input is kept for the backward although nothing reads it; from 0.43.2 on it is not.
* int8: the input is quantised by rows into int8, the product is int32, then fp16, then the input's dtype. The input itself is
kept; up
  to 0.44 also its column-quantised copy. How many outlier columns there are depends on data: none are assumed.

What the library keeps it keeps as attributes of the autograd node, not as saved tensors: they live as long as the graph does.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

BLOCK = 64  # weights a 4-bit scale
NESTED_BLOCK = 256  # scales a second-level scale
NEWEST_KNOWN = "0.49.2"
INPUT_NOT_KEPT_SINCE = (0, 43, 2)
ROWWISE_ONLY_SINCE = (0, 45, 0)
OUTLIER_THRESHOLD = 6.0  # transformers' llm_int8_threshold default


def bitsandbytes_version(wanted: str | None = None) -> tuple[int, ...]:
    """The version whose behaviour is assumed: ``wanted``, else the installed one, else the newest known."""
    if wanted is None:
        from importlib.metadata import PackageNotFoundError, version

        try:
            wanted = version("bitsandbytes")
        except PackageNotFoundError:
            wanted = NEWEST_KNOWN
    return tuple(int(part) for part in wanted.split(".")[:3] if part.isdigit())


def install_stand_in(version: str | None = None) -> ModuleType:
    """Put a module named ``bitsandbytes`` with the stand-ins in place, for peft and transformers to find; call it before peft
    is imported.

    The real library, installed or not, cannot run on fake tensors.
    """
    known = sys.modules.get("bitsandbytes")
    if known is not None and getattr(known, "trainbudget_stand_in", False):
        return known
    if "peft.import_utils" in sys.modules:
        sys.modules["peft.import_utils"].is_bnb_available.cache_clear()
        sys.modules["peft.import_utils"].is_bnb_4bit_available.cache_clear()
    package, layers, functional = ModuleType("bitsandbytes"), ModuleType("bitsandbytes.nn"), ModuleType("bitsandbytes.functional")
    for module in (package, layers, functional):
        module.__spec__ = ModuleSpec(module.__name__, loader=None)
    layers.Linear4bit, layers.Linear8bitLt = Linear4bit, Linear8bitLt  # type: ignore[attr-defined]
    layers.Params4bit, layers.Int8Params = _Params4bit, _Int8Params  # type: ignore[attr-defined]
    package.nn, package.functional = layers, functional  # type: ignore[attr-defined]
    vars(package)["__version__"] = ".".join(map(str, bitsandbytes_version(version)))
    package.trainbudget_stand_in = True  # type: ignore[attr-defined]
    sys.modules.update({m.__name__: m for m in (package, layers, functional)})
    return package


class _Params4bit(torch.nn.Parameter):
    """Only asked for its class; packed weights are plain uint8 parameters here."""


class _Int8Params(torch.nn.Parameter):
    """Only asked for its class; int8 weights are plain parameters here."""


class QuantState:
    """Scales of a 4-bit weight."""

    def __init__(self, shape: torch.Size, dtype: torch.dtype, device: Any, nested: bool) -> None:
        self.shape, self.dtype, self.nested = shape, dtype, nested
        blocks = -(-shape.numel() // BLOCK)
        self.blocks = blocks
        if not nested:
            self.absmax = torch.empty(blocks, dtype=torch.float32, device=device)
            return
        self.absmax = torch.empty(blocks, dtype=torch.uint8, device=device)
        self.absmax2 = torch.empty(-(-blocks // NESTED_BLOCK), dtype=torch.float32, device=device)
        self.offset = torch.empty((), dtype=torch.float32, device=device)

    def dequantize(self) -> torch.Tensor:
        """The weight in its original dtype; the scales are expanded first when they are nested."""
        absmax = self.absmax
        if self.nested:
            absmax = torch.empty(self.blocks, dtype=torch.float32, device=self.absmax.device)
            absmax += self.offset
        weight = torch.empty(self.shape, dtype=self.dtype, device=self.absmax.device)
        del absmax
        return weight


class _MatMul4Bit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, state: QuantState, bias: torch.Tensor | None, keep_input: bool) -> torch.Tensor:  # type: ignore[override]
        out = torch.nn.functional.linear(x, state.dequantize().to(x.dtype).t().t(), bias)
        ctx.state = state
        ctx.kept = x if keep_input and any(ctx.needs_input_grad[:1]) else None
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        if not ctx.needs_input_grad[0]:
            return None, None, None, None
        return torch.matmul(gradient, ctx.state.dequantize().to(gradient.dtype)), None, None, None


class Linear4bit(torch.nn.Linear):
    """``bitsandbytes.nn.Linear4bit`` made from a linear layer."""

    def __init__(
        self,
        linear: torch.nn.Linear,
        *,
        kind: str,
        nested: bool,
        compute_dtype: torch.dtype,
        stored_dtype: torch.dtype,
        keep_input: bool,
    ) -> None:
        torch.nn.Module.__init__(self)
        weight = linear.weight
        self.in_features, self.out_features = linear.in_features, linear.out_features
        packed = torch.empty((-(-weight.numel() // 2), 1), dtype=torch.uint8, device=weight.device)
        self.weight = torch.nn.Parameter(packed, requires_grad=False)
        self.quant_state = QuantState(weight.shape, stored_dtype, weight.device, nested)
        self.weight.quant_type, self.weight.compress_statistics = kind, nested  # type: ignore[attr-defined]
        self.weight.quant_state = self.quant_state  # type: ignore[attr-defined]
        self.bias = linear.bias
        self.compute_dtype = compute_dtype
        self._keep_input = keep_input

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = None if self.bias is None else self.bias.to(self.compute_dtype)
        return _MatMul4Bit.apply(x.to(self.compute_dtype), self.quant_state, bias, self._keep_input).to(x.dtype)


class _MatMul8bitLt(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, layer: Linear8bitLt, bias: torch.Tensor | None) -> torch.Tensor:  # type: ignore[override]
        flat = x.reshape(-1, x.shape[-1])
        half = flat.to(torch.float16)
        large = half.abs() >= OUTLIER_THRESHOLD
        del large
        rows = torch.empty_like(flat, dtype=torch.int8)
        scales = torch.empty(flat.shape[0], dtype=torch.float32, device=x.device)
        columns = None if layer.rowwise_only else torch.empty_like(rows)
        del half
        product = torch.empty(flat.shape[0], layer.out_features, dtype=torch.int32, device=x.device)
        out = torch.empty_like(product, dtype=torch.float16)
        if bias is not None and bias.dtype != torch.float16:
            out = out.add_(bias)
        out = out.to(x.dtype)
        del product, rows, scales
        ctx.layer, ctx.dtype, ctx.shape = layer, x.dtype, x.shape
        ctx.kept = (columns, flat) if ctx.needs_input_grad[0] else None
        return out.reshape(*x.shape[:-1], layer.out_features)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        if not ctx.needs_input_grad[0]:
            return None, None, None
        flat = gradient.reshape(-1, gradient.shape[-1]).contiguous()
        weight = ctx.layer.weight.to(ctx.dtype, copy=True)
        weight = weight.mul_(ctx.layer.scales.unsqueeze(1).mul(1.0 / 127.0))
        return torch.matmul(flat.to(ctx.dtype), weight).view(ctx.shape), None, None


class Linear8bitLt(torch.nn.Linear):
    """``bitsandbytes.nn.Linear8bitLt`` with int8 weights, made from a linear layer."""

    def __init__(self, linear: torch.nn.Linear, *, rowwise_only: bool) -> None:
        torch.nn.Module.__init__(self)
        weight = linear.weight
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = torch.nn.Parameter(torch.empty(weight.shape, dtype=torch.int8, device=weight.device), requires_grad=False)
        self.register_buffer("scales", torch.empty(weight.shape[0], dtype=torch.float32, device=weight.device), persistent=False)
        self.bias = linear.bias
        self.rowwise_only = rowwise_only
        self.state = SimpleNamespace(has_fp16_weights=False, threshold=OUTLIER_THRESHOLD, memory_efficient_backward=False)
        self.index = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _MatMul8bitLt.apply(x, self, self.bias)


def quantize(
    model: torch.nn.Module,
    quantization: str,
    *,
    version: str | None = None,
    compute_dtype: torch.dtype | None = None,
    stored_dtype: torch.dtype | None = None,
    skip: tuple[str, ...] = (),
    head: bool = False,
) -> torch.nn.Module:
    """The model with its linear layers quantized in place, the output head and ``skip`` left alone as transformers does.

    Args:
        quantization: ``nf4``, ``nf4_double``, ``fp4``, ``fp4_double`` or ``int8``.
        compute_dtype: ``bnb_4bit_compute_dtype``; None = the dtype of the weights.
        stored_dtype: dtype the weights had when they were quantized, which they are dequantized into; None = the dtype of the
            weights.
        head: quantize the output head too, as Lightning does.
    """
    stack = bitsandbytes_version(version)
    kept = set(skip) if head else {*skip, *_output_names(model)}
    dtypes = (compute_dtype, stored_dtype)
    for name, module in list(model.named_modules()):
        for child_name, child in list(module.named_children()):
            whole = f"{name}.{child_name}" if name else child_name
            if type(child) is not torch.nn.Linear or child_name in kept or whole in kept:
                continue
            setattr(module, child_name, _quantized(child, quantization, stack, dtypes))
    model.is_quantized = True  # type: ignore[assignment]
    model.is_loaded_in_8bit = quantization == "int8"  # type: ignore[assignment]
    model.is_loaded_in_4bit = quantization != "int8"  # type: ignore[assignment]
    return model


def _quantized(
    linear: torch.nn.Linear, quantization: str, stack: tuple[int, ...], dtypes: tuple[torch.dtype | None, torch.dtype | None]
) -> torch.nn.Linear:
    if quantization == "int8":
        return Linear8bitLt(linear, rowwise_only=stack >= ROWWISE_ONLY_SINCE)
    return Linear4bit(
        linear,
        kind=quantization[:3],
        nested=quantization.endswith("_double"),
        compute_dtype=dtypes[0] or linear.weight.dtype,
        stored_dtype=dtypes[1] or linear.weight.dtype,
        keep_input=stack < INPUT_NOT_KEPT_SINCE,
    )


def _output_names(model: torch.nn.Module) -> set[str]:
    """Names of the modules transformers does not quantize: the output embedding and whatever comes last."""
    head = getattr(model, "get_output_embeddings", lambda: None)()
    names = {name for name, module in model.named_modules() if module is head and head is not None}
    last = next(reversed(list(model.named_children())), None)
    if last is not None and isinstance(last[1], torch.nn.Linear):
        names.add(last[0])
    for name in ("score", "classifier", "qa_outputs"):
        if hasattr(model, name):
            names.add(name)
    return names
