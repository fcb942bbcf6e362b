"""FSDP1, ``FullyShardedDataParallel`` (torch 2.13, ``distributed/fsdp``): one flat parameter a unit, gathered in place.

Autograd concatenates a unit's gradients into one flat gradient, so they exist twice for a moment. When frozen parameters share
a flat parameter with trained ones (``use_orig_params``), they get gradients too. ``limit_all_gathers`` only makes the host wait.
"""

from __future__ import annotations

from typing import Any

from trainbudget.plan.sharding.fully_sharded import FullySharded
from trainbudget.plan.sharding.strategy import FIRST, LAST, MIDDLE, ONLY, ceil_div
from trainbudget.plan.tracing.trace import Category, Parameter

PRE_UNSHARD, UNSHARD, POST_BACKWARD = "pre_unshard", "unshard", "post_backward"


class Fsdp1(FullySharded):
    """Options beside those of both: ``shard_grad_op`` (SHARD_GRAD_OP: parameters stay gathered from forward to backward),
    ``backward_prefetch`` (``none`` as accelerate's default, ``pre`` as torch's)."""

    def __init__(self, world: int, *, shard_grad_op: bool = False, backward_prefetch: str = "none", **options: Any) -> None:
        super().__init__(world, **options)
        self._shard_grad_op = shard_grad_op
        self._prefetch = backward_prefetch == "pre"

    def _unit_local(self, unit: int) -> int:
        return ceil_div(self.timeline.unit_elements(unit), self.world)

    def local_elements(self, parameter: Parameter) -> int:
        return ceil_div(parameter.elements, self.world)

    def setup(self) -> None:
        self._wanted = [[i for i in unit if self.timeline.parameters[i].graded] for unit in self.timeline.unit_parameters]
        if not self.offload:
            for unit in range(len(self.timeline.unit_parameters)):
                self.ledger.malloc(self._unit_local(unit) * self.stored, Category.PARAMETERS)

    def begin(self) -> None:
        super().begin()
        self._full: dict[int, int | None] = {}
        if self.micro in (MIDDLE, LAST):  # no_sync keeps whole flat gradients, frozen parts included
            for unit in range(len(self.timeline.unit_parameters)):
                if self._wanted[unit]:
                    size = self.timeline.unit_elements(unit) * self.compute
                    self.accumulated[unit] = self.ledger.malloc(size, Category.GRADIENTS)

    def _gather(self, unit: int) -> None:
        if unit in self._full or not self.timeline.unit_parameters[unit]:
            return
        local = self._unit_local(unit)
        cast = None
        if self.compute != self.stored or self.offload:
            cast = self.ledger.malloc(local * self.compute, Category.COMMUNICATION, PRE_UNSHARD)
        self._full[unit] = self.ledger.malloc(local * self.world * self.compute, Category.PARAMETERS, UNSHARD)
        self.ledger.free(cast)

    def _reshard(self, unit: int) -> None:
        self.ledger.free(self._full.pop(unit, None))

    def pre_forward(self, unit: int) -> None:
        self._gather(unit)

    def post_forward(self, unit: int) -> None:
        if self.in_backward:
            return
        if unit != 0 and not self._shard_grad_op:
            self._reshard(unit)
        self.note_forward(unit)

    def pre_backward(self, unit: int) -> None:
        if not self.begins_backward(unit):
            return
        self._gather(unit)
        before = self.before_in_forward(unit)
        if before is not None and self._prefetch:
            self._gather(before)

    def gradient(self, parameter: int, storage: int) -> None:
        self.gradients[parameter] = storage
        unit = self.timeline.parameters[parameter].unit
        if all(i in self.gradients for i in self._wanted[unit]):
            self._flush(unit)

    def post_backward(self, unit: int) -> None:
        if not self._wanted[unit]:
            self._reshard(unit)  # nothing to reduce: the unit is resharded when its inputs have their gradients

    def _flush(self, unit: int) -> None:
        elements = self.timeline.unit_elements(unit)  # the whole flat parameter, frozen part included
        flat = self.ledger.malloc(elements * self.compute, Category.GRADIENTS)
        for i in self._wanted[unit]:
            self.drop(i)
        newest = None
        if self.micro == FIRST:
            self.accumulated[unit] = flat
        elif self.micro != ONLY:
            newest, flat = flat, self.accumulated[unit]  # autograd holds the newest until the hook returns
        self._reshard(unit)
        if self.micro in (FIRST, MIDDLE):
            self.ledger.free(newest)
            return
        self._reduce(ceil_div(elements, self.world))
        self.ledger.free(flat)
        self.ledger.free(newest)
        self.accumulated.pop(unit, None)

    def _reduce(self, local: int) -> None:
        cast = None
        if self.reduced != self.compute:
            cast = self.ledger.malloc(local * self.world * self.reduced, Category.COMMUNICATION, POST_BACKWARD)
        self.ledger.free(self.keep_reduced(local, POST_BACKWARD))
        self.ledger.free(cast)

    def end_backward(self) -> None:
        for unit in list(self._full):
            self._reshard(unit)

    def save_bytes(self) -> int:
        """A full state dict unshards one unit at a time in the stored dtype."""
        units = range(len(self.timeline.unit_parameters))
        return max((self._unit_local(u) * self.world * self.stored for u in units), default=0)
