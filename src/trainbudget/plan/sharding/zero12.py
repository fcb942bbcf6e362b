"""DeepSpeed ZeRO 1 and 2 (0.19, ``runtime/zero/stage_1_and_2.py``): full low-precision parameters, master copy and state on
1/world."""

from __future__ import annotations

from trainbudget.plan.sharding.strategy import Strategy, ceil_div
from trainbudget.plan.sharding.timeline import ITEM_BYTES
from trainbudget.plan.tracing.trace import Category, Parameter

DEFAULT_BUCKET = 500_000_000  # elements


class Zero12(Strategy):
    """Options, DeepSpeed's own names: ``reduce_bucket_size`` (elements), ``overlap_comm`` (two buckets), ``offload_optimizer``,
    ``grad_accum_dtype``, ``fused_adam`` (DeepSpeed's FusedAdam: no temporaries), ``clip`` (the norm is taken in fp64)."""

    def __init__(
        self,
        world: int,
        stage: int,
        *,
        reduce_bucket_size: int = DEFAULT_BUCKET,
        overlap_comm: bool = False,
        offload_optimizer: bool = False,
        grad_accum_dtype: str | None = None,
        fused_adam: bool = True,
        clip: bool = True,
    ) -> None:
        super().__init__(world)
        self.stage = stage
        self.offload = offload_optimizer
        self._bucket_elements = int(reduce_bucket_size)
        self._overlap = overlap_comm
        self._grad_item = ITEM_BYTES[grad_accum_dtype] if grad_accum_dtype else None
        self._fused = fused_adam
        self._clip = clip

    def item_bytes(self, parameter: Parameter) -> int:
        return 4

    def setup(self) -> None:
        super().setup()
        trainable = self.timeline.trainable
        self._item = trainable[0].item_bytes if trainable else 2
        self._grad = self._grad_item or self._item
        self._partition = ceil_div(sum(p.elements for p in trainable), self.world)
        self._mine: set[int] = set()  # rank 0 owns the first part of the flat group
        offset = 0
        for i, p in enumerate(self.timeline.parameters):
            if p.trainable:
                if offset < self._partition:
                    self._mine.add(i)
                offset += p.elements
        if self.offload:
            self.ledger.malloc(max((p.elements for p in trainable), default=0) * self._item, Category.COMMUNICATION)
        else:
            self.ledger.malloc(self._partition * 4, Category.OPTIMIZER_STATE)

    def begin(self) -> None:
        self._ipg: list[int | None] = []
        self._filled = 0
        self._buffer: int | None = None
        self._bucket: list[int] = []

    def _reduce(self) -> None:
        owner = any(i in self._mine for i in self._bucket)
        if owner and self.stage == 2 and not self.offload and self._buffer is None:
            self._buffer = self.ledger.malloc(self._partition * self._grad, Category.GRADIENTS)
        for i in self._bucket:
            self.drop(i)
        self._bucket, self._filled = [], 0

    def gradient(self, parameter: int, storage: int) -> None:
        elements = self.timeline.parameters[parameter].elements
        self.gradients[parameter] = storage
        if not self._ipg:
            size = self._bucket_elements * self._item
            self._ipg = [self.ledger.malloc(size, Category.COMMUNICATION) for _ in range(2 if self._overlap else 1)]
        if self.stage == 1 and not self._overlap:
            return  # reduced at the gradient accumulation boundary
        if self._filled + elements > self._bucket_elements:
            self._reduce()
        self._filled += elements
        self._bucket.append(parameter)
        if elements <= self._bucket_elements:
            self.drop(parameter)  # copied into the bucket; a larger one keeps its own storage

    def end_backward(self) -> None:
        if self.stage == 2:
            self._reduce()
        elif not self.offload:
            self._buffer = self.ledger.malloc(self._partition * self._grad, Category.GRADIENTS)
        for i in list(self.gradients):
            self.drop(i)
        for handle in self._ipg:
            self.ledger.free(handle)
        self._ipg = []

    def make_state(self) -> None:
        if self._states is None and not self.offload:
            item = self.optimizer.item_bytes or 4
            size = int(self._partition * item)
            self._states = [self.ledger.malloc(size, Category.OPTIMIZER_STATE) for _ in range(self.optimizer.tensors)]

    def optimizer_step(self) -> None:
        if self.offload:
            return
        ledger = self.ledger
        if self._clip:
            largest = max((min(p.elements, self._partition) for p in self.timeline.trainable), default=0)
            ledger.free(ledger.malloc(8 * largest, Category.TEMPORARIES))
        flat = ledger.malloc(self._partition * self._grad, Category.GRADIENTS)
        if self._grad != 4:
            single = ledger.malloc(self._partition * 4, Category.GRADIENTS)
            ledger.free(flat)
            flat = single
        ledger.free(self._buffer)
        self._buffer = None
        self.make_state()
        if not self._fused:
            ledger.free(ledger.malloc(self.optimizer.scratch_bytes([self._partition], 4), Category.TEMPORARIES))
        ledger.free(flat)

    def save_bytes(self) -> int:
        """Parameters are whole on every rank: nothing is gathered."""
        return 0
