"""FSDP2, ``fully_shard`` (torch 2.13, ``distributed/fsdp/_fully_shard``).

Implicit forward prefetch keeps the previous all-gather output until after the next copy-out; backward prefetches exactly one
unit; one reduce-scatter input stays alive until the next unit's post-backward; the root is not resharded after forward.
"""

from __future__ import annotations

from typing import Any

from trainbudget.plan.sharding.fully_sharded import FullySharded
from trainbudget.plan.sharding.strategy import FIRST, LAST, MIDDLE, ceil_div
from trainbudget.plan.tracing.trace import Category, Parameter

GATHER, REDUCE = "all_gather", "reduce_scatter"


class Fsdp2(FullySharded):
    """Options beside those of both: ``reshard_after_forward`` (bool, or ``"all_but_last"`` as torchtitan),
    ``reduce_scatter_inputs`` kept (torch default 1)."""

    def __init__(self, world: int, *, reshard_after_forward: Any = True, reduce_scatter_inputs: int = 1, **options: Any) -> None:
        super().__init__(world, **options)
        self._reshard = reshard_after_forward
        self._inputs_kept = reduce_scatter_inputs

    def local_elements(self, parameter: Parameter) -> int:
        """Rows are split over the ranks, padded a parameter at a time."""
        rows = parameter.shape[0] if parameter.shape else 1
        return ceil_div(rows, self.world) * (parameter.elements // max(1, rows))

    def setup(self) -> None:
        if not self.offload:
            for p in self.timeline.parameters:
                self.ledger.malloc(self.local_elements(p) * self.stored, Category.PARAMETERS)

    def begin(self) -> None:
        super().begin()
        self._gathered: dict[int, int | None] = {}
        self._full: dict[int, list[int | None]] = {}
        self._held: int | None = None
        self._inputs: list[int | None] = []
        self._after: set[int] = set()
        self._all_reduced: list[int | None] = []
        self._graded: set[int] = set()
        if self.micro in (MIDDLE, LAST):  # unsharded_accumulated_grad is kept in reduce_dtype
            for i, p in enumerate(self.timeline.parameters):
                if p.trainable:
                    self.accumulated[i] = self.ledger.malloc(p.elements * self.reduced, Category.GRADIENTS)

    def _reshards(self, unit: int) -> bool:
        if unit == 0:
            return False
        if self._reshard == "all_but_last":
            return unit != len(self.timeline.unit_parameters) - 1
        return bool(self._reshard)

    def _parameters(self, unit: int) -> list[Parameter]:
        return [self.timeline.parameters[i] for i in self.timeline.unit_parameters[unit]]

    def _gather(self, unit: int) -> None:
        if unit in self._full or unit in self._gathered or not self._parameters(unit):
            return
        elements = sum(self.local_elements(p) for p in self._parameters(unit))
        upload = self.ledger.malloc(elements * self.stored, Category.COMMUNICATION, GATHER) if self.offload else None
        cast = (
            self.ledger.malloc(elements * self.compute, Category.COMMUNICATION, GATHER) if self.compute != self.stored else None
        )
        self._gathered[unit] = self.ledger.malloc(elements * self.world * self.compute, Category.COMMUNICATION, GATHER)
        self.ledger.free(cast)
        self.ledger.free(upload)

    def _copy_out(self, unit: int, *, forward: bool) -> None:
        if unit not in self._gathered:
            return
        self._full[unit] = [
            self.ledger.malloc(self.local_elements(p) * self.world * self.compute, Category.PARAMETERS)
            for p in self._parameters(unit)
        ]
        if not forward:
            self.ledger.free(self._gathered.pop(unit))
            return
        self.ledger.free(self._held)
        self._held = self._gathered.pop(unit)

    def _free_full(self, unit: int) -> None:
        for handle in self._full.pop(unit, []):
            self.ledger.free(handle)

    def pre_forward(self, unit: int) -> None:
        self._gather(unit)
        self._copy_out(unit, forward=not self.in_backward)

    def post_forward(self, unit: int) -> None:
        if self.in_backward:
            return
        if self._reshards(unit):
            self._free_full(unit)
        if self._parameters(unit):
            self.note_forward(unit)
        if unit == 0:
            self.ledger.free(self._held)
            self._held = None

    def pre_backward(self, unit: int) -> None:
        if not self._parameters(unit) or not self.begins_backward(unit):
            return
        self._gather(unit)
        self._copy_out(unit, forward=False)
        before = self.before_in_forward(unit)
        if before is not None:
            self._gather(before)

    def gradient(self, parameter: int, storage: int) -> None:
        self.gradients[parameter] = storage
        self._graded.add(parameter)
        if parameter in self.accumulated and self.reduced == self.compute:
            self.drop(parameter)  # accumulated in place by autograd itself

    def post_backward(self, unit: int) -> None:
        if unit in self._after:
            return
        self._after.add(unit)
        graded = [i for i in self.timeline.unit_parameters[unit] if i in self._graded]
        if self.micro in (MIDDLE, LAST):
            for i in graded:
                self.drop(i)
        self._free_full(unit)
        if self.micro == FIRST and self.reduced != self.compute:
            for i in graded:
                self.accumulated[i] = self.ledger.malloc(self.timeline.parameters[i].elements * self.reduced, Category.GRADIENTS)
                self.drop(i)
        if self.micro not in (FIRST, MIDDLE):
            self._reduce(graded)

    def _reduce(self, graded: list[int]) -> None:
        while len(self._inputs) >= self._inputs_kept:
            self.ledger.free(self._inputs.pop(0))
        if not graded:
            return
        local = sum(self.local_elements(self.timeline.parameters[i]) for i in graded)
        packed = self.ledger.malloc(local * self.world * self.reduced, Category.COMMUNICATION)
        for i in graded:
            if i in self.accumulated:
                self.ledger.free(self.accumulated.pop(i))
            else:
                self.drop(i)
        left_over = self.keep_reduced(local, REDUCE)
        if self.replicas > 1:
            self._all_reduced.append(left_over)  # the all-reduce between replicas may still read it
        else:
            self.ledger.free(left_over)
        self._inputs.append(packed)

    def end_backward(self) -> None:
        for unit in reversed(range(len(self.timeline.unit_parameters))):
            self.post_backward(unit)
        for handle in [*self._inputs, *self._all_reduced, *self._gathered.values()]:
            self.ledger.free(handle)
        self._inputs, self._all_reduced, self._gathered = [], [], {}

    def save_bytes(self) -> int:
        """A full state dict gathers one parameter at a time in the stored dtype."""
        return max((p.elements * self.stored for p in self.timeline.parameters), default=0)
