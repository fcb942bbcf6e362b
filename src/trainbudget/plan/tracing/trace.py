"""What a traced training step says: every storage's birth and death, and the work of every operator. Plain data, serialisable,
no torch."""

from __future__ import annotations

from enum import IntEnum

import msgspec

from trainbudget.plan.train_spec import TrainSpec


class Category(IntEnum):
    """What a storage holds. ``workspace`` is a kernel's own scratch memory."""

    PARAMETERS = 0
    BUFFERS = 1
    GRADIENTS = 2
    OPTIMIZER_STATE = 3
    ACTIVATIONS = 4
    LOGITS = 5
    TEMPORARIES = 6
    WORKSPACE = 7
    INPUTS = 8
    COMMUNICATION = 9

    @property
    def label(self) -> str:
        """The name that reports use."""
        return self.name.lower()


class Phase(IntEnum):
    """Part of the loop an event falls in."""

    SETUP = 0
    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3
    EVALUATION = 4
    SAVE = 5

    @property
    def label(self) -> str:
        """The name that reports use."""
        return self.name.lower()


class Kind(IntEnum):
    """Meaning of an event; an event is the tuple ``(kind, a, b, c)``."""

    MALLOC = 0  # a = storage, b = bytes, c = category
    FREE = 1  # a = storage
    RETAG = 2  # a = storage, c = category
    WORKSPACE = 3  # b = bytes taken and returned by one kernel
    PHASE = 4  # a = phase
    STEP = 5  # a = optimizer step, b = micro-step
    BACKWARD_END = 6  # the micro-step's backward is over
    GRADIENT = 7  # a = storage, b = parameter
    UNIT_PRE_FORWARD = 8  # a = unit, from here on
    UNIT_POST_FORWARD = 9
    UNIT_PRE_BACKWARD = 10
    UNIT_POST_BACKWARD = 11
    EMPTY_CACHE = 12  # unused segments are given back (``torch.cuda.empty_cache``)


Event = tuple[int, int, int, int]


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """One parameter of the model as traced.

    Attributes:
        storage: storage number in the events.
        unit: index of the module that is sharded and gathered together; 0 is the root.
        graded: whether a gradient was made for it in the step.
    """

    name: str
    shape: tuple[int, ...]
    elements: int
    item_bytes: int
    trainable: bool
    storage: int = -1
    unit: int = 0
    graded: bool = False


class OperatorCost(msgspec.Struct, frozen=True, kw_only=True):
    """Equal calls of one operator in one micro-step (forward, backward) or one optimizer step.

    Attributes:
        name: the ATen operator, for example ``mm``.
        kind: ``matmul``, ``attention``, ``convolution``, ``quantized`` or ``memory`` (bound by bytes).
        dtype: what it computes in, for example ``bfloat16``.
        flops: of one call.
        bytes: read and written by one call.
        count: number of such calls.
    """

    name: str
    kind: str
    phase: int
    dtype: str
    flops: int
    bytes: int
    count: int


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """A traced training step.

    Attributes:
        events: in program order; see :class:`Kind`.
        units: names of the modules that are sharded together; the first is the root.
        operators: of the last traced step, per micro-step for forward and backward.
        spec: the configuration that was traced; for a user's own step, what the caller told of it.
        micro_steps: micro-steps traced for each optimizer step (at most 2: more of them repeat the second).
        steps: optimizer steps traced.
        logits_bytes: of one evaluation batch, kept on the device by an evaluation loop; 0 without one.
        optimizer: name the optimizer factory gave.
        state_tensors, state_item_bytes: optimizer state a parameter, for strategies that shard it.
        optimizer_scratch: ``foreach``, ``loop``, ``fused`` or ``none``.
        not_understood: one line for each thing that the trace could only approximate.
        remarks: one line for each thing the caller should know that does not make the prediction less certain.
        answers: how often a value that only a real device knows had to be guessed.
        recomputable_bytes: activations that the backward finds, written by other operators than products, attention and
            convolutions: what a compiler may compute again instead of keeping.
    """

    events: list[Event]
    parameters: list[Parameter]
    units: list[str] = msgspec.field(default_factory=lambda: ["model"])
    operators: list[OperatorCost] = msgspec.field(default_factory=list)
    spec: TrainSpec = msgspec.field(default_factory=TrainSpec)
    micro_steps: int = 1
    steps: int = 2
    logits_bytes: int = 0
    optimizer: str = ""
    state_tensors: int = 2
    state_item_bytes: float | None = None
    optimizer_scratch: str = "foreach"
    not_understood: list[str] = msgspec.field(default_factory=list)
    remarks: list[str] = msgspec.field(default_factory=list)
    answers: int = 0
    recomputable_bytes: int = 0
    portable: bool = True
    torch_version: str = ""
    seconds: float = 0.0

    @property
    def parameter_elements(self) -> int:
        """Number of parameters (elements, not tensors)."""
        return sum(p.elements for p in self.parameters)

    @property
    def trainable_elements(self) -> int:
        """Number of trainable parameters."""
        return sum(p.elements for p in self.parameters if p.trainable)

    @property
    def flops_per_micro_step(self) -> int:
        """Forward and backward floating-point operations, recomputation included."""
        return sum(o.flops * o.count for o in self.operators if o.phase in (Phase.FORWARD, Phase.BACKWARD))


def encode_trace(trace: Trace) -> bytes:
    """The trace as MessagePack."""
    return msgspec.msgpack.encode(trace)


def decode_trace(data: bytes) -> Trace:
    """The trace in ``data``.

    Raises:
        msgspec.DecodeError: it is none.
    """
    return msgspec.msgpack.decode(data, type=Trace)
