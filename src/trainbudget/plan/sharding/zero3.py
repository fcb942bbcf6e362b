"""DeepSpeed ZeRO 3 (0.19, ``runtime/zero/stage3.py``): everything on 1/world, parameters gathered a module at a time.

Gradients pass through one bucket that lives for the whole run; to be reduced, a bucket with more than one parameter is packed
once more. The gradient partition is never freed. The optimizer steps one sub-group after another, with nothing gathered.
DeepSpeed's own linear function (``memory_efficient_linear``, its default) finishes the gradient of a weight before that of its
bias.
"""

from __future__ import annotations

from collections.abc import Iterator

from trainbudget.plan.sharding.strategy import Strategy, ceil_div
from trainbudget.plan.sharding.timeline import ITEM_BYTES
from trainbudget.plan.sharding.zero3_coordinator import Coordinator, Reach
from trainbudget.plan.sharding.zero12 import NORM_BYTES
from trainbudget.plan.tracing.trace import Category, Kind, Parameter

REDUCE = "reduce_scatter"


class Zero3(Strategy):
    """Options, DeepSpeed's own names, sizes in elements."""

    def __init__(
        self,
        world: int,
        *,
        reduce_bucket_size: int = 500_000_000,
        stage3_prefetch_bucket_size: int = 50_000_000,
        stage3_max_live_parameters: int = 1_000_000_000,
        stage3_max_reuse_distance: int = 1_000_000_000,
        stage3_param_persistence_threshold: int = 100_000,
        sub_group_size: int = 1_000_000_000,
        offload_optimizer: bool = False,
        offload_param: bool = False,
        grad_accum_dtype: str | None = None,
        fused_adam: bool = True,
    ) -> None:
        super().__init__(world)
        self.offload = offload_optimizer
        self._offload_param = offload_param
        self._bucket_elements = int(reduce_bucket_size)
        self._reach = Reach(
            prefetch_bucket_size=int(stage3_prefetch_bucket_size),
            max_live_parameters=int(stage3_max_live_parameters),
            max_reuse_distance=int(stage3_max_reuse_distance),
        )
        self._threshold = int(stage3_param_persistence_threshold)
        self._sub_group = int(sub_group_size)
        self._grad_item = ITEM_BYTES[grad_accum_dtype] if grad_accum_dtype else None
        self._fused = fused_adam

    def local_elements(self, parameter: Parameter) -> int:
        return ceil_div(parameter.elements, self.world)

    def item_bytes(self, parameter: Parameter) -> int:
        return 4

    def setup(self) -> None:
        parameters, ledger = self.timeline.parameters, self.ledger
        trainable = self.timeline.trainable
        self._item = parameters[0].item_bytes if parameters else 2
        self._grad = self._grad_item or self._item
        owned = sum(self.local_elements(p) for p in trainable)
        if not self._offload_param:
            ledger.malloc(sum(self.local_elements(p) for p in parameters) * self._item, Category.PARAMETERS)
        if not self.offload:
            ledger.malloc(owned * 4, Category.OPTIMIZER_STATE)
            ledger.malloc(owned * self._grad, Category.GRADIENTS)  # grad_partitions_flat_buffer, never freed
        ledger.malloc(self._bucket_elements * self._item, Category.COMMUNICATION)  # one bucket for the whole run
        uses = (Kind.UNIT_PRE_FORWARD, Kind.UNIT_PRE_BACKWARD)
        self._gathered = Coordinator(
            ledger,
            parameters,
            self.timeline.unit_parameters,
            [e[1] for e in self.timeline.events if e[0] in uses],
            {i for i, p in enumerate(parameters) if p.elements <= self._threshold},
            world=self.world,
            item_bytes=self._item,
            reach=self._reach,
        )
        self._gathered.gather_persistent()
        self._weight_of = dict(self._linear_layers())

    def _linear_layers(self) -> Iterator[tuple[int, int]]:
        """(bias, weight) of modules that hold a matrix and a vector, both trained."""
        for unit in self.timeline.unit_parameters:
            shapes = {len(self.timeline.parameters[i].shape): i for i in unit if self.timeline.parameters[i].graded}
            if len(unit) == 2 and set(shapes) == {1, 2}:
                yield shapes[1], shapes[2]

    def begin(self) -> None:
        self._gathered.begin()
        self._filled = 0
        self._bucket: list[int] = []
        self._seen: set[int] = set()
        self._early_bias: dict[int, int] = {}  # weight that is still to come -> its bias

    def pre_forward(self, unit: int) -> None:
        self._gathered.fetch(unit, backward=False)

    def post_forward(self, unit: int) -> None:
        self._gathered.release(unit, backward=False)

    def pre_backward(self, unit: int) -> None:
        self._gathered.fetch(unit, backward=True)

    def post_backward(self, unit: int) -> None:
        self._gathered.release(unit, backward=True)

    def gradient(self, parameter: int, storage: int) -> None:
        self.gradients[parameter] = storage
        weight = self._weight_of.get(parameter)
        if weight is not None and weight not in self._seen:
            self._early_bias[weight] = parameter
            return
        self._seen.add(parameter)
        self._into_bucket(parameter)
        bias = self._early_bias.pop(parameter, None)
        if bias is not None:
            self._into_bucket(bias)

    def _into_bucket(self, parameter: int) -> None:
        elements = self.timeline.parameters[parameter].elements
        if self._filled + elements > self._bucket_elements:
            self._reduce()
        self._bucket.append(parameter)
        self._filled += elements
        if self._filled <= self._bucket_elements:
            self.drop(parameter)  # copied into the bucket; a larger one keeps its own storage

    def _reduce(self) -> None:
        bucket, self._bucket, self._filled = self._bucket, [], 0
        if not bucket:
            return
        local = [self.local_elements(self.timeline.parameters[i]) for i in bucket]
        even = len(bucket) == 1 and self.timeline.parameters[bucket[0]].elements % self.world == 0
        packed = None if even else self.ledger.malloc(sum(local) * self.world * self._item, Category.COMMUNICATION, REDUCE)
        if self._grad != self._item:
            self.ledger.scratch([size * self._grad for size in local], Category.COMMUNICATION)
        for i in bucket:
            self.drop(i)
        self.ledger.free(packed)

    def end_backward(self) -> None:
        self._reduce()
        self._gathered.end_backward()

    def _sub_groups(self) -> list[list[int]]:
        """Owned elements of the trained parameters the optimizer updates together."""
        groups: list[list[int]] = [[]]
        for p in self.timeline.trainable:
            if sum(groups[-1]) >= self._sub_group:
                groups.append([])
            groups[-1].append(self.local_elements(p))
        return [group for group in groups if group]

    def optimizer_step(self) -> None:
        ledger = self.ledger
        self._gathered.release_all()
        if not self.offload:
            fresh = self._states is None
            groups = self._sub_groups()
            ledger.scratch([NORM_BYTES * max((max(group) for group in groups), default=0)], Category.TEMPORARIES)
            for group in groups:
                self._update(group, fresh)
        self._gathered.gather_persistent()

    def _update(self, group: list[int], fresh: bool) -> None:
        ledger, size = self.ledger, sum(group)
        flat = ledger.malloc(size * self._grad, Category.GRADIENTS) if len(group) > 1 else None  # one alone is a view
        if self._grad != 4:
            single = ledger.malloc(size * 4, Category.GRADIENTS)
            ledger.free(flat)
            flat = single
        if fresh:
            item = self.optimizer.item_bytes or 4
            made = [ledger.malloc(int(size * item), Category.OPTIMIZER_STATE) for _ in range(self.optimizer.tensors)]
            self._states = [*(self._states or []), *made]
        if not self._fused:
            ledger.scratch([self.optimizer.scratch_bytes([size], 4)], Category.TEMPORARIES)
        ledger.free(flat)

    def save_bytes(self) -> int:
        """``stage3_gather_16bit_weights_on_model_save`` gathers the parameters of one module at a time."""
        parameters = self.timeline.parameters
        units = self.timeline.unit_parameters
        return max((sum(parameters[i].elements for i in unit) * self._item for unit in units), default=0)
