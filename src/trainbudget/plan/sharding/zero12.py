"""DeepSpeed ZeRO 1 and 2 (0.19, ``runtime/zero/stage_1_and_2.py``): full low-precision parameters, master copy and state on
1/world.

Gradients pass through a bucket (``ipg``) of ``reduce_bucket_size`` elements. A bucket that holds gradients of two ranks'
partitions is flattened once more to be reduced. What belongs to this rank is copied out, whole parameters even where its
partition ends inside one. Stage 1 keeps every gradient until the last micro-step; stage 2 keeps its partition, and a second one
while a later micro-step fills it. Replayed for rank 0.
"""

from __future__ import annotations

from collections.abc import Iterator

from trainbudget.plan.sharding.strategy import FIRST, LAST, MIDDLE, Strategy, ceil_div
from trainbudget.plan.sharding.timeline import ITEM_BYTES
from trainbudget.plan.tracing.trace import Category, Parameter

DEFAULT_BUCKET = 500_000_000  # elements
ALIGNMENT = 2  # elements a rank, ``nccl_start_alignment_factor``
NORM_BYTES = 8  # an element: gradient norms are taken in fp64, a tensor at a time, whether or not they are clipped


class Zero12(Strategy):
    """Options, DeepSpeed's own names: ``reduce_bucket_size`` (elements), ``overlap_comm`` (two buckets), ``offload_optimizer``,
    ``grad_accum_dtype``, ``fused_adam`` (DeepSpeed's FusedAdam: no temporaries), ``compute_grad_norm``."""

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
        compute_grad_norm: bool = True,
    ) -> None:
        super().__init__(world)
        self.stage = stage
        self.offload = offload_optimizer
        self._bucket_elements = int(reduce_bucket_size)
        self._overlap = overlap_comm
        self._grad_item = ITEM_BYTES[grad_accum_dtype] if grad_accum_dtype else None
        self._fused = fused_adam
        self._norm = compute_grad_norm

    def item_bytes(self, parameter: Parameter) -> int:
        return 4

    def setup(self) -> None:
        trainable = self.timeline.trainable
        self._item = trainable[0].item_bytes if trainable else 2
        self._grad = self._grad_item or self._item
        elements = sum(p.elements for p in trainable)
        self._partition = ceil_div(elements, ALIGNMENT * self.world) * ALIGNMENT
        self.ledger.malloc(self._partition * self.world * self._item, Category.PARAMETERS)
        for p in self.timeline.parameters:
            if not p.trainable:
                self.ledger.malloc(p.elements * p.item_bytes, Category.PARAMETERS)
        self._start: dict[int, int] = {}  # of each trained parameter in the flat group
        offset = 0
        for i, p in enumerate(self.timeline.parameters):
            if p.trainable:
                self._start[i] = offset
                offset += p.elements
        self._ipg: list[int | None] = []
        self._reduced: int | None = None  # this rank's gradients of this micro-step
        self._kept: int | None = None  # and of earlier ones
        if self.offload:
            self.ledger.malloc(max((p.elements for p in trainable), default=0) * self._item, Category.COMMUNICATION)
        else:
            self.ledger.malloc(self._partition * 4, Category.OPTIMIZER_STATE)

    def _elements(self, parameter: int) -> int:
        return self.timeline.parameters[parameter].elements

    def _mine(self, parameter: int) -> int:
        """Elements of a parameter in this rank's partition."""
        return max(0, min(self._elements(parameter), self._partition - self._start[parameter]))

    @property
    def _in_place(self) -> bool:
        """Reductions are added straight into an fp32 partition (``_use_compact_grad_partition_buffer``)."""
        return self._grad == 4 and self._item != 4

    @property
    def _at_boundary(self) -> bool:
        return self.micro not in (FIRST, MIDDLE)

    @property
    def _reduces_in_backward(self) -> bool:
        return self.stage == 2 or (self._overlap and self._at_boundary)

    # -- buffers -----------------------------------------------------------------------------------------------------------

    def _partition_buffer(self) -> int | None:
        """This rank's gradients: of its whole parameters, or exactly its partition where it is added to in place."""
        if self.offload:
            return None
        if self._in_place:
            return self.ledger.malloc(self._partition * self._grad, Category.GRADIENTS)
        whole = sum(self._elements(i) for i in self._start if self._mine(i))
        return self.ledger.malloc(whole * self._item, Category.GRADIENTS)

    def _open_bucket(self) -> None:
        if not self._ipg:
            size = self._bucket_elements * self._item
            self._ipg = [self.ledger.malloc(size, Category.COMMUNICATION) for _ in range(2 if self._overlap else 1)]

    def _close_bucket(self) -> None:
        for handle in self._ipg:
            self.ledger.free(handle)
        self._ipg = []

    def _give_up(self, parameter: int) -> None:
        """A parameter's gradient dies, with what earlier micro-steps left in it."""
        self.drop(parameter)
        self.ledger.free(self.accumulated.pop(parameter, None))

    # -- hooks -------------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self._bucket: list[int] = []
        self._filled = 0
        if self.micro not in (MIDDLE, LAST):
            return
        if self.stage == 2:
            self._kept = self._partition_buffer()
            return
        self._open_bucket()  # it stays from the first gradient to the end of the last micro-step
        for i in self._start:
            if self.timeline.parameters[i].graded:
                self.accumulated[i] = self.ledger.malloc(self._elements(i) * self._grad, Category.GRADIENTS)

    def gradient(self, parameter: int, storage: int) -> None:
        self.gradients[parameter] = storage
        if parameter in self.accumulated:
            self.drop(parameter)  # added into the one of earlier micro-steps
        self._open_bucket()
        if self._reduces_in_backward:
            self._into_bucket(parameter)

    def _into_bucket(self, parameter: int) -> None:
        elements = self._elements(parameter)
        if self._filled + elements > self._bucket_elements:
            self._reduce()
        if elements <= self._bucket_elements:
            self._give_up(parameter)  # copied; a larger one keeps its own storage
        self._bucket.append(parameter)
        self._filled += elements

    def _reduce(self) -> None:
        bucket, self._bucket, self._filled = self._bucket, [], 0
        if self._in_place and self._kept is None and any(self._mine(i) for i in bucket):
            self._kept = self._partition_buffer()
        for together in self._flattened(bucket):
            sizes = [elements for elements, _ in together]
            flat = self.ledger.malloc(sum(sizes) * self._item, Category.COMMUNICATION) if len(sizes) > 1 else None
            for elements, mine in together:
                if mine and self._in_place:
                    self.ledger.scratch([elements * self._grad], Category.COMMUNICATION)
            self.ledger.free(flat)
        for i in bucket:
            if self._mine(i) and not self._in_place:
                if self._reduced is None:
                    self._reduced = self._partition_buffer()
                self._give_up(i)
            elif not self._mine(i) and self.stage == 2:
                self._give_up(i)

    def _flattened(self, bucket: list[int]) -> Iterator[list[tuple[int, bool]]]:
        """(elements, whether this rank's) of the slices that one all-reduce flattens; neighbours of one rank are one slice."""
        slices: list[tuple[int, int]] = []  # (elements, rank)
        for i in bucket:
            done = 0
            while done < self._elements(i):
                rank = (self._start[i] + done) // self._partition
                size = min(self._elements(i) - done, (rank + 1) * self._partition - self._start[i] - done)
                if slices and slices[-1][1] == rank and not (self._in_place and rank == 0):
                    slices[-1] = (slices[-1][0] + size, rank)
                else:
                    slices.append((size, rank))
                done += size
        together: list[tuple[int, bool]] = []
        for size, rank in slices:
            together.append((size, rank == 0))
            if sum(s for s, _ in together) > self._bucket_elements:
                yield together
                together = []
        if together:
            yield together

    def end_backward(self) -> None:
        if self.stage == 1 and not self._at_boundary:
            return
        if not self._reduces_in_backward:
            for i in self._start:
                if self.timeline.parameters[i].graded:
                    self._into_bucket(i)
        self._reduce()
        if self._kept is None:
            self._kept, self._reduced = self._reduced, None
        self.ledger.free(self._reduced)  # added to the one of earlier micro-steps
        self._reduced = None
        self._close_bucket()
        for i in list(self._start):
            self._give_up(i)

    def make_state(self) -> None:
        if self._states is None and not self.offload:
            item = self.optimizer.item_bytes or 4
            size = int(self._partition * item)
            self._states = [self.ledger.malloc(size, Category.OPTIMIZER_STATE) for _ in range(self.optimizer.tensors)]

    def optimizer_step(self) -> None:
        if self.offload:
            return
        ledger = self.ledger
        if self._norm:
            largest = max((self._mine(i) for i in self._start), default=0)
            ledger.scratch([NORM_BYTES * largest], Category.TEMPORARIES)
        flat: int | None
        if self._in_place:
            flat, self._kept = self._kept, None  # flat and fp32 already
        else:
            flat = ledger.malloc(self._partition * self._grad, Category.GRADIENTS)
            if self._grad != 4:
                single = ledger.malloc(self._partition * 4, Category.GRADIENTS)
                ledger.free(flat)
                flat = single
        ledger.free(self._kept)
        self._kept = None
        self.make_state()
        if not self._fused:
            ledger.scratch([self.optimizer.scratch_bytes([self._partition], 4)], Category.TEMPORARIES)
        ledger.free(flat)

    def zero_grad(self) -> None:
        """What a replayed micro-step without an optimizer step leaves behind."""
        super().zero_grad()
        for handle in (self._kept, self._reduced):
            self.ledger.free(handle)
        self._kept = self._reduced = None
        self._close_bucket()

    def save_bytes(self) -> int:
        """Parameters are whole on every rank: nothing is gathered."""
        return 0
