"""What every sharding strategy has in common: the hooks a replay calls, the optimizer's memory, gradients it may take away
early."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trainbudget.plan.ledger import Ledger
from trainbudget.plan.sharding.timeline import Timeline
from trainbudget.plan.tracing.trace import Category, Parameter

ONLY, FIRST, MIDDLE, LAST = "only", "first", "middle", "last"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerMemory:
    """State and scratch of an optimizer, a parameter element.

    Attributes:
        tensors: full-size state tensors.
        item_bytes: of one state element; None = as the parameter it belongs to.
        scratch: ``foreach`` (one temporary for all parameters at once), ``loop`` (two of the largest), ``fused`` or ``none``.
    """

    tensors: int = 2
    item_bytes: float | None = None
    scratch: str = "foreach"

    def scratch_bytes(self, sizes: list[int], item_bytes: int) -> int:
        """Bytes of temporaries at the peak of one step."""
        if not sizes or self.scratch not in ("foreach", "loop"):
            return 0
        return item_bytes * (sum(sizes) if self.scratch == "foreach" else 2 * max(sizes))


def ceil_div(a: int, b: int) -> int:
    """``a / b`` rounded up."""
    return -(-a // b)


class Strategy:
    """One replica without sharding; strategies override the hooks.

    ``micro`` is the place of the replayed micro-step in an accumulation that does not communicate in between (``no_sync``,
    ``set_requires_gradient_sync(False)``): ``only``, ``first``, ``middle`` or ``last``.
    """

    offload = False

    def __init__(self, world: int) -> None:
        self.world = world
        self.micro = ONLY
        self.in_backward = False

    def bind(self, ledger: Ledger, timeline: Timeline, optimizer: OptimizerMemory, free_traced: Callable[[int], None]) -> None:
        """Allocate what lives for the whole run."""
        self.ledger, self.timeline, self.optimizer = ledger, timeline, optimizer
        self._free_traced = free_traced
        self._states: list[int | None] | None = None
        self.gradients: dict[int, int] = {}  # parameter -> storage of the gradient autograd made
        self.accumulated: dict[int, int | None] = {}  # parameter or unit -> gradient of earlier micro-steps
        self.until_zero_grad: list[int | None] = []
        self.setup()

    # -- hooks of the replay -----------------------------------------------------------------------------------------------

    def setup(self) -> None:
        """Parameters."""
        for p in self.timeline.parameters:
            self.ledger.malloc(p.elements * p.item_bytes, Category.PARAMETERS)

    def start_step(self) -> None:
        """A step begins; in an accumulation an optimizer step has happened before."""
        self.in_backward = False
        self.gradients, self.accumulated = {}, {}
        if self.micro != ONLY:
            self.make_state()
        self.begin()

    def begin(self) -> None:
        """Gradients of earlier micro-steps."""
        if self.micro in (MIDDLE, LAST):
            for i, p in enumerate(self.timeline.parameters):
                if p.trainable:
                    self.accumulated[i] = self.ledger.malloc(p.elements * p.item_bytes, Category.GRADIENTS)

    def pre_forward(self, unit: int) -> None:
        """A unit's forward begins (also when it is recomputed inside backward)."""

    def post_forward(self, unit: int) -> None:
        """A unit's forward ends."""

    def pre_backward(self, unit: int) -> None:
        """A gradient has reached a unit's output."""

    def post_backward(self, unit: int) -> None:
        """A unit's backward has run."""

    def gradient(self, parameter: int, storage: int) -> None:
        """Autograd has finished a parameter's gradient."""
        self.gradients[parameter] = storage
        if parameter in self.accumulated:
            self.drop(parameter)  # added into the accumulated one

    def end_backward(self) -> None:
        """The whole backward has run."""

    def optimizer_step(self) -> None:
        """State at the first step, then the step's temporaries."""
        self.make_state()
        trainable = self.timeline.trainable
        item = self.item_bytes(trainable[0]) if trainable else 4
        sizes = [self.local_elements(p) for p in trainable]
        self.ledger.free(self.ledger.malloc(self.optimizer.scratch_bytes(sizes, item), Category.TEMPORARIES))

    def zero_grad(self) -> None:
        """``zero_grad(set_to_none=True)``."""
        for handle in self.until_zero_grad:
            self.ledger.free(handle)
        self.until_zero_grad = []
        for parameter in list(self.gradients):
            self.drop(parameter)
        for handle in self.accumulated.values():
            self.ledger.free(handle)
        self.accumulated = {}

    # -- helpers -----------------------------------------------------------------------------------------------------------

    def local_elements(self, parameter: Parameter) -> int:
        """Elements of a parameter that this rank's optimizer owns."""
        return parameter.elements

    def item_bytes(self, parameter: Parameter) -> int:
        """Bytes an element of what the optimizer updates."""
        return parameter.item_bytes

    def make_state(self) -> None:
        """torch optimizers create their state at the first step."""
        if self._states is not None or self.offload:
            return
        self._states = [
            self.ledger.malloc(
                int(self.local_elements(p) * (self.optimizer.item_bytes or self.item_bytes(p))), Category.OPTIMIZER_STATE
            )
            for p in self.timeline.trainable
            for _ in range(self.optimizer.tensors)
        ]

    def drop(self, parameter: int) -> None:
        """Autograd's own gradient of a parameter dies."""
        storage = self.gradients.pop(parameter, None)
        if storage is not None:
            self._free_traced(storage)
