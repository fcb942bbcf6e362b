"""What FSDP1 and FSDP2 have in common: dtypes, order of the units in backward, reduced gradients, host offload, copies of the
sharded model."""

from __future__ import annotations

from trainbudget.errors import ConfigError
from trainbudget.plan.sharding.strategy import Strategy
from trainbudget.plan.sharding.timeline import ITEM_BYTES
from trainbudget.plan.tracing.trace import Category, Parameter


class FullySharded(Strategy):
    """Options of both: ``shard_dtype`` of the stored parameters, ``param_dtype`` of compute and gathering, ``reduce_dtype`` of
    gradients on the wire (as ``param_dtype`` by default), ``cpu_offload``, ``replicas``: copies of the sharded model
    (``HYBRID_SHARD``, a mesh of two dimensions), each on ``world`` / ``replicas`` ranks."""

    def __init__(
        self,
        world: int,
        *,
        shard_dtype: str = "fp32",
        param_dtype: str = "bf16",
        reduce_dtype: str | None = None,
        cpu_offload: bool = False,
        replicas: int = 1,
    ) -> None:
        if replicas < 1 or world % replicas:
            raise ConfigError(f"{replicas} replicas do not divide {world} ranks")
        super().__init__(world // replicas)
        self.replicas = replicas
        self.compute, self.stored = ITEM_BYTES[param_dtype], ITEM_BYTES[shard_dtype]
        self.reduced = ITEM_BYTES[reduce_dtype or param_dtype]
        self.offload = cpu_offload

    def item_bytes(self, parameter: Parameter) -> int:
        return self.stored

    def begin(self) -> None:
        self._forward_order: list[int] = []
        self._begun_backward: set[int] = set()

    def note_forward(self, unit: int) -> None:
        """A unit's forward is over."""
        self._forward_order.append(unit)

    def begins_backward(self, unit: int) -> bool:
        """Whether this is the first gradient that reaches the unit's outputs."""
        first = unit not in self._begun_backward
        self._begun_backward.add(unit)
        return first

    def before_in_forward(self, unit: int) -> int | None:
        """The unit whose backward comes next; None for the last."""
        place = self._forward_order.index(unit) if unit in self._forward_order else 0
        return self._forward_order[place - 1] if place > 0 else None

    def keep_reduced(self, elements: int, stream: str) -> int | None:
        """This rank's part of a unit's gradients: reduced, cast to the stored dtype, kept until ``zero_grad`` (offloaded ones
        are not). Returns the buffer in ``reduce_dtype`` if a cast has left it over."""
        out = self.ledger.malloc(elements * self.reduced, Category.GRADIENTS, stream)
        left_over = None
        if self.reduced != self.stored:
            left_over, out = out, self.ledger.malloc(elements * self.stored, Category.GRADIENTS, stream)
        if self.offload:
            self.ledger.free(out)
        else:
            self.until_zero_grad.append(out)
        return left_over

    def optimizer_step(self) -> None:
        if not self.offload:
            super().optimizer_step()
