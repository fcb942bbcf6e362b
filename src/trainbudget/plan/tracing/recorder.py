"""Follows every storage on the simulated device from birth to death, and counts the work of every operator."""

from __future__ import annotations

import sys
import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from trainbudget.plan.allocator import MIB
from trainbudget.plan.simulated_device.backend import NAME
from trainbudget.plan.simulated_device.cuda import means_cuda
from trainbudget.plan.simulated_device.reductions import SHRUNK, with_full_storage
from trainbudget.plan.tracing.data_dependent import ANSWERS
from trainbudget.plan.tracing.trace import Category, Event, Kind, OperatorCost, Phase
from trainbudget.plan.workspaces import kernel_workspace

aten = torch.ops.aten

_BORN_IN = {
    Phase.SETUP: Category.PARAMETERS,
    Phase.FORWARD: Category.ACTIVATIONS,
    Phase.BACKWARD: Category.TEMPORARIES,
    Phase.OPTIMIZER: Category.TEMPORARIES,
    Phase.EVALUATION: Category.ACTIVATIONS,
    Phase.SAVE: Category.TEMPORARIES,
}
_DATA_PHASES = (Phase.FORWARD, Phase.BACKWARD, Phase.EVALUATION)  # an optimizer's step counters are no data
_ATTENTION = ("attention",)
_CONVOLUTION = ("convolution", "conv")
_LOGITS_BYTES = MIB  # a smaller tensor as wide as the vocabulary is a bias or a row, not the logits


class Recorder(TorchDispatchMode):
    """Events of one trace. Enter it inside the simulated device's fake mode; it holds no reference to any tensor."""

    def __init__(self, vocabulary: int | None = None, *, all_answer: bool = True) -> None:
        super().__init__()
        self._all_answer = all_answer  # what `mask.all()` says: False when the batch is padded
        self._alls: set[int] = set()
        self.events: list[Event] = []
        self.phase = Phase.SETUP
        self.vocabulary = vocabulary
        self.answers = 0
        self.operators = 0
        self.unknown: dict[str, str] = {}
        self._live: dict[int, tuple[int, weakref.ref[Any]]] = {}  # storage address -> storage number and its death watch
        self._born: dict[int, tuple[int, int]] = {}  # storage number -> bytes, category
        self._next = 0
        self._costs: dict[tuple[str, str, int, str, int, int], int] = {}
        self._cheap: set[int] = set()  # storages written by operators without products
        self.recomputable_bytes = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled during a trace; the wrapper that keeps dynamo out costs a tenth of the time

    # -- phases ------------------------------------------------------------------------------------------------------------

    def enter_phase(self, phase: Phase) -> None:
        """Everything from here on happens in ``phase``."""
        if phase is not self.phase:
            if phase is Phase.BACKWARD:
                self._note_recomputable()
            self.phase = phase
            self.events.append((Kind.PHASE, phase, 0, 0))

    def _note_recomputable(self) -> None:
        alive = (self._born[s] for s in self._cheap & self._born.keys())
        found = sum(size for size, category in alive if category in (Category.ACTIVATIONS, Category.LOGITS))
        self.recomputable_bytes = max(self.recomputable_bytes, found)
        self._cheap.clear()

    def mark(self, kind: Kind, a: int = 0, b: int = 0, c: int = 0) -> None:
        """Append an event that is no malloc or free."""
        self.events.append((kind, a, b, c))

    def forget_setup(self) -> None:
        """Drop how the model was built (weights really come from a file): only what is alive counts, in order of birth."""
        self.events.clear()
        for storage in sorted(self._born):
            size, category = self._born[storage]
            self.events.append((Kind.MALLOC, storage, size, category))
        self._costs.clear()

    def forget_costs(self) -> None:
        """Start counting operators anew."""
        self._costs.clear()

    # -- storages ----------------------------------------------------------------------------------------------------------

    def storage_of(self, tensor: torch.Tensor) -> int:
        """Number of the tensor's storage; -1 when it is not on the device."""
        entry = self._live.get(tensor.untyped_storage()._cdata)
        return -1 if entry is None else entry[0]

    def track(self, tensor: torch.Tensor, category: Category | None = None) -> int:
        """Know the tensor's storage from now on (or change its category); returns its number, -1 when it is not on the device."""
        if tensor.device.type != NAME:
            return -1
        storage = tensor.untyped_storage()
        key = storage._cdata
        entry = self._live.get(key)
        if entry is not None:
            if category is not None:
                self._retag(entry[0], category)
            return entry[0]
        size = storage.nbytes()
        if size == 0:
            return -1
        if category is None:
            category = self._category_of(tensor, size)
        number = self._next
        self._next += 1
        live, born, events = self._live, self._born, self.events

        def died(_: Any) -> None:
            live.pop(key, None)
            born.pop(number, None)
            events.append((Kind.FREE, number, 0, 0))

        live[key] = (number, weakref.ref(storage, died))
        born[number] = (size, category)
        events.append((Kind.MALLOC, number, size, category))
        return number

    def _retag(self, number: int, category: Category) -> None:
        size, old = self._born[number]
        if old != category:
            self._born[number] = (size, category)
            self.events.append((Kind.RETAG, number, 0, category))

    def _category_of(self, tensor: torch.Tensor, size: int) -> Category:
        wide = self.vocabulary is not None and tensor.dim() >= 2 and tensor.shape[-1] == self.vocabulary
        if wide and size > _LOGITS_BYTES and self.phase in _DATA_PHASES:
            return Category.LOGITS
        return _BORN_IN[self.phase]

    # -- operators ---------------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = dict(kwargs) if kwargs else {}
        if func.namespace == "prim":
            return func(*args, **kwargs)
        if means_cuda(kwargs.get("device")):
            kwargs["device"] = torch.device(NAME, 0)
        if func is aten._local_scalar_dense.default:
            return self._answer(args[0])
        if func in ANSWERS:
            return self._largest(ANSWERS[func](args))
        if func is aten.index.Tensor and any(i is not None and i.dtype == torch.bool for i in args[1]):
            args = (args[0], self._rows_of_masks(args[1]))
        try:
            out = func(*args, **kwargs)
        except Exception as exc:
            if self.phase is Phase.BACKWARD:  # the engine may abort the process on it: say which operator first
                print(f"trainbudget-trace: {func} failed in backward: {exc}", file=sys.stderr, flush=True)  # noqa: T201
            raise
        self.operators += 1
        packet = func._overloadpacket
        if packet is aten.log_sigmoid_forward:
            out = (out[0], out[1].new_empty(0))  # CUDA keeps no buffer
        elif packet is aten.all and self.phase in _DATA_PHASES:
            self._alls.add(out.untyped_storage()._cdata)
        elif packet in SHRUNK:
            out, beside = with_full_storage(packet, args, kwargs, out)
            if beside:
                self.events.append((Kind.WORKSPACE, 0, beside, 1))
        self._note(func, packet, args, kwargs, out)
        return out

    def _largest(self, out: Any) -> Any:
        self.answers += self.phase in _DATA_PHASES
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self.track(tensor)
        return out

    def _rows_of_masks(self, indices: Any) -> list[Any]:
        """Boolean masks as positions, as many as there could be: how many are True depends on data."""
        self.answers += self.phase in _DATA_PHASES
        rows: list[Any] = []
        for index in indices:
            if index is not None and index.dtype == torch.bool:
                rows.extend(torch.zeros(index.numel(), dtype=torch.long, device=index.device) for _ in range(index.dim()))
            else:
                rows.append(index)
        return rows

    def _answer(self, tensor: torch.Tensor) -> bool | float | int:
        """A plausible ``.item()``; False while the model is built (initialisers loop until no value is out of range)."""
        self.answers += self.phase in _DATA_PHASES
        if tensor.dtype == torch.bool:
            if tensor.untyped_storage()._cdata in self._alls:
                return self._all_answer
            return self.phase is not Phase.SETUP
        return 1.0 if tensor.dtype.is_floating_point else 1

    def _note(self, func: Any, packet: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        outs = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        name = packet._qualified_op_name.rpartition("::")[2]
        scratch = kernel_workspace(name, args)
        for tensor in outs:
            self.track(tensor)
        if scratch:
            self.events.extend((Kind.WORKSPACE, index, size, len(scratch)) for index, size in enumerate(scratch))
        if func.is_view or packet is aten.detach or packet is aten.alias:
            return
        self._count(name, packet, (args, kwargs), out, outs)

    def _count(self, name: str, packet: Any, call: tuple[Any, Any], out: Any, outs: list[torch.Tensor]) -> None:
        args, kwargs = call
        on_device = [t for t in tree_leaves(call) if isinstance(t, torch.Tensor) and t.device.type == NAME]
        if not on_device and not any(t.device.type == NAME for t in outs):
            return
        moved = sum(t.numel() * t.element_size() for t in on_device) + sum(t.numel() * t.element_size() for t in outs)
        plain = tuple(a for a in args if not isinstance(a, torch.dtype))  # mm.dtype's formula does not know the argument
        flops = int(flop_registry[packet](*plain, **kwargs, out_val=out)) if packet in flop_registry else 0
        if not flops and self.phase is Phase.FORWARD and not name.endswith("_"):  # in place, the product's storage stays its own
            self._cheap.update(map(self.storage_of, outs))
        if flops and _is_causal(packet, args, kwargs):
            flops //= 2  # kernels skip the blocks above the diagonal
        dtype = str((on_device or outs)[0].dtype)[len("torch.") :]
        key = (name, _kind_of(name, flops), int(self.phase), dtype, flops, moved)
        self._costs[key] = self._costs.get(key, 0) + 1

    def costs(self) -> list[OperatorCost]:
        """What was counted since :meth:`forget_costs`."""
        return [
            OperatorCost(name=name, kind=kind, phase=phase, dtype=dtype, flops=flops, bytes=moved, count=count)
            for (name, kind, phase, dtype, flops, moved), count in self._costs.items()
        ]


def _is_causal(packet: Any, args: Any, kwargs: Any) -> bool:
    names = [a.name for a in packet.default._schema.arguments]
    if "is_causal" not in names:
        return False
    place = names.index("is_causal")
    return bool(args[place] if len(args) > place else kwargs.get("is_causal", False))


def _kind_of(name: str, flops: int) -> str:
    if not flops:
        return "memory"
    if any(word in name for word in _ATTENTION):
        return "attention"
    if any(word in name for word in _CONVOLUTION):
        return "convolution"
    return "matmul"
