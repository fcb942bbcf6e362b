"""DeepSpeed ZeRO 3 (0.19, ``runtime/zero/stage3.py``, ``partitioned_param_coordinator.py``): parameters fetched a sub-module
at a time.

A gathered parameter is released only when its next use is far away (``stage3_max_reuse_distance``) or too many are live, so a
model below about 1e9 parameters stays gathered from its forward to its backward.
"""

from __future__ import annotations

from trainbudget.plan.sharding.strategy import Strategy, ceil_div
from trainbudget.plan.sharding.timeline import ITEM_BYTES
from trainbudget.plan.tracing.trace import Category, Kind, Parameter

GATHER, REDUCE = "all_gather", "reduce_scatter"


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
        self._prefetch = int(stage3_prefetch_bucket_size)
        self._max_live = int(stage3_max_live_parameters)
        self._max_reuse = int(stage3_max_reuse_distance)
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
            state_item = self.optimizer.item_bytes or 4
            self._states = [
                ledger.malloc(int(owned * state_item), Category.OPTIMIZER_STATE) for _ in range(self.optimizer.tensors)
            ]
            ledger.malloc(owned * self._grad, Category.GRADIENTS)  # grad_partitions_flat_buffer, never freed
        ledger.malloc(self._bucket_elements * self._item, Category.COMMUNICATION)  # one bucket for the whole run
        self._persistent = {i for i, p in enumerate(parameters) if p.elements <= self._threshold}
        for i in self._persistent:
            ledger.malloc(parameters[i].elements * self._item, Category.PARAMETERS)
        uses = (Kind.UNIT_PRE_FORWARD, Kind.UNIT_PRE_BACKWARD)
        self._uses = [e[1] for e in self.timeline.events if e[0] in uses]  # as the coordinator's own recorded order

    def begin(self) -> None:
        self._live: dict[int, int | None] = {}
        self._live_elements = 0
        self._place = -1
        self._filled = 0
        self._bucket: list[int] = []

    def _needed(self, unit: int) -> list[int]:
        return [i for i in self.timeline.unit_parameters[unit] if i not in self._persistent]

    def _fetch(self, wanted: list[int]) -> None:
        wanted = [i for i in wanted if i not in self._live]
        if not wanted:
            return
        sizes = [self.local_elements(self.timeline.parameters[i]) * self.world for i in wanted]
        flat = self.ledger.malloc(sum(sizes) * self._item, Category.COMMUNICATION, GATHER) if len(wanted) > 1 else None
        for i, size in zip(wanted, sizes, strict=True):
            self._live[i] = self.ledger.malloc(size * self._item, Category.PARAMETERS, GATHER)
            self._live_elements += self.timeline.parameters[i].elements
        self.ledger.free(flat)  # a coalesced gather is one flat buffer and a torch.cat for each parameter

    def _use(self, unit: int) -> None:
        self._place += 1
        while self._place < len(self._uses) and self._uses[self._place] != unit:
            self._place += 1
        self._fetch(self._needed(unit))
        self._fetch(self._ahead(min(self._max_live - self._live_elements, self._prefetch)))

    def _ahead(self, budget: int) -> list[int]:
        found: list[int] = []
        seen: set[int] = set()
        for unit in self._uses[self._place + 1 :]:
            for i in self._needed(unit):
                if i in self._live or i in seen:
                    continue
                budget -= self.timeline.parameters[i].elements
                if budget < 0:
                    return found
                found.append(i)
                seen.add(i)
        return found

    def _release(self, unit: int) -> None:
        soon: set[int] = set()
        distance = 0
        for later in self._uses[self._place + 1 :]:
            if distance >= self._max_reuse:
                break
            for i in self._needed(later):
                soon.add(i)
                distance += self.timeline.parameters[i].elements
        for i in self._needed(unit):
            if i in self._live and (i not in soon or self._live_elements > self._max_live):
                self.ledger.free(self._live.pop(i))
                self._live_elements -= self.timeline.parameters[i].elements

    def pre_forward(self, unit: int) -> None:
        self._use(unit)

    def post_forward(self, unit: int) -> None:
        self._release(unit)

    def pre_backward(self, unit: int) -> None:
        if unit in self._uses[self._place + 1 :]:
            self._use(unit)

    def post_backward(self, unit: int) -> None:
        self._release(unit)

    def _reduce(self) -> None:
        bucket, self._bucket, self._filled = self._bucket, [], 0
        if not bucket:
            return
        elements = sum(self.local_elements(self.timeline.parameters[i]) for i in bucket)
        packed = self.ledger.malloc(elements * self.world * self._item, Category.COMMUNICATION, REDUCE)
        for i in bucket:
            self.drop(i)
        self.ledger.free(packed)

    def gradient(self, parameter: int, storage: int) -> None:
        elements = self.timeline.parameters[parameter].elements
        self.gradients[parameter] = storage
        if self._filled + elements > self._bucket_elements:
            self._reduce()
        self._bucket.append(parameter)
        self._filled += elements
        if self._filled <= self._bucket_elements:
            self.drop(parameter)

    def end_backward(self) -> None:
        self._reduce()
        for handle in self._live.values():
            self.ledger.free(handle)
        self._live, self._live_elements = {}, 0

    def optimizer_step(self) -> None:
        if self.offload:
            return
        ledger = self.ledger
        owned = [self.local_elements(p) for p in self.timeline.trainable]
        group = min(sum(owned), max(self._sub_group, max(owned, default=0)))
        flat = ledger.malloc(group * self._grad, Category.GRADIENTS)
        if self._grad != 4:
            single = ledger.malloc(group * 4, Category.GRADIENTS)
            ledger.free(flat)
            flat = single
        if not self._fused:
            ledger.free(ledger.malloc(self.optimizer.scratch_bytes([group], 4), Category.TEMPORARIES))
        ledger.free(flat)

    def save_bytes(self) -> int:
        """``stage3_gather_16bit_weights_on_model_save`` gathers the parameters of one module at a time."""
        parameters = self.timeline.parameters
        units = self.timeline.unit_parameters
        return max((sum(parameters[i].elements for i in unit) * self._item for unit in units), default=0)
