"""What is trained and on what: the inputs of a memory prediction. Plain data, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from trainbudget.errors import ConfigError

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "bf16_pure", "fp16_pure")
STRATEGIES = ("none", "ddp", "fsdp", "fsdp2", "zero1", "zero2", "zero3")
QUANTIZATIONS = ("none", "nf4", "nf4_double", "fp4", "fp4_double", "int8")
TASKS = (
    "causal_lm",
    "masked_lm",
    "sequence_classification",
    "token_classification",
    "question_answering",
    "seq2seq",
    "image_classification",
)
CHECKPOINTING = (None, "reentrant", "non_reentrant")


class EvalSpec(msgspec.Struct, frozen=True, kw_only=True):
    """An evaluation inside training.

    Attributes:
        batch: examples a batch; None = the training micro-batch.
        batches: batches of one evaluation on this rank.
        keep_logits: whether predictions are kept (``compute_metrics`` is set and ``prediction_loss_only`` is not).
        accumulation_steps: batches after which kept predictions go to the host; None = all stay on the device.
    """

    batch: int | None = None
    batches: int = 100
    keep_logits: bool = False
    accumulation_steps: int | None = None


class TrainSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One training configuration, in the words of PLAN.toml (design section 4).

    Attributes:
        micro_batch: examples a rank and micro-step.
        sequence_length: tokens an example (image models ignore it).
        precision: ``fp16`` and ``bf16`` are autocast over the model's own dtype; ``*_pure`` holds everything in that dtype.
        model_dtype: dtype of the parameters as loaded; None = fp32, or the pure precision's.
        optimizer: a Hugging Face ``optim`` name.
        activation_checkpointing: as ``gradient_checkpointing_kwargs["use_reentrant"]``; None = off.
        checkpoint_every_n_layers: only every n-th layer is checkpointed.
        attention: ``attn_implementation``; ``sdpa`` takes the kernel of the target GPU.
        peft: {"type": "lora" | "dora" | "ia3" | ..., "r": 16, "target_modules": [...], ...}; None = all parameters train.
        quantization_stack: version of bitsandbytes whose saved tensors are assumed; None = the installed one, else the newest
            known.
        prepare_for_kbit_training: peft's function of that name is called, as its examples do: norms and embeddings become fp32.
        loop: ``trainer`` (Hugging Face: outputs of the model become fp32, the graph dies with the step) or ``plain`` (the
            variable ``loss`` lives until it is bound again).
        zero_grad: ``none`` frees gradients, ``keep`` zeroes them in place.
        strategy: sharding over ``world_size`` ranks; ``strategy_options`` are the fields of its replay
            (``trainbudget.plan.sharding``).
        pad: every example is padded to the same length without an attention mask; False = the batch carries a mask.
        labels: number of classes for classification tasks.
        target_length: decoder tokens of a seq2seq task; None = the sequence length.
        layers: the model of a configuration is traced with so many layers instead of its own (`trainbudget.plan.layers`).
        compiled: ``torch.compile`` is used; the step is traced as eager code, the interval says what fusing may save.
    """

    micro_batch: int = 1
    sequence_length: int = 512
    gradient_accumulation: int = 1
    precision: Literal["fp32", "tf32", "fp16", "bf16", "bf16_pure", "fp16_pure"] = "fp32"
    model_dtype: str | None = None
    optimizer: str = "adamw_torch"
    activation_checkpointing: Literal["reentrant", "non_reentrant"] | None = None
    checkpoint_every_n_layers: int = 1
    attention: str = "sdpa"
    peft: dict[str, Any] | None = None
    quantization: Literal["none", "nf4", "nf4_double", "fp4", "fp4_double", "int8"] = "none"
    quantization_stack: str | None = None
    prepare_for_kbit_training: bool = True
    task: str = "causal_lm"
    strategy: Literal["none", "ddp", "fsdp", "fsdp2", "zero1", "zero2", "zero3"] = "none"
    strategy_options: dict[str, Any] = msgspec.field(default_factory=dict)
    world_size: int = 1
    evaluation: EvalSpec | None = None
    max_grad_norm: float | None = 1.0
    loop: Literal["trainer", "plain"] = "trainer"
    zero_grad: Literal["none", "keep"] = "none"
    pad: bool = True
    labels: int = 2
    target_length: int | None = None
    compiled: bool = False
    layers: int | None = None

    def with_shape(self, *, micro_batch: int | None = None, sequence_length: int | None = None) -> TrainSpec:
        """The same configuration at another shape."""
        return msgspec.structs.replace(
            self, micro_batch=micro_batch or self.micro_batch, sequence_length=sequence_length or self.sequence_length
        )


class TargetGpu(msgspec.Struct, frozen=True, kw_only=True):
    """The card a step is traced for.

    Attributes:
        memory_bytes: total memory as the driver reports it.
        limit_bytes: what the process may use; None = all of it.
        compute_capability: (8, 0) for an A100; decides which attention kernel runs.
    """

    name: str = "NVIDIA A100-SXM4-80GB"
    memory_bytes: int = 85_899_345_920
    limit_bytes: int | None = None
    compute_capability: tuple[int, int] = (8, 0)

    @property
    def usable_bytes(self) -> int:
        """Bytes the process may hold, its context included."""
        return self.memory_bytes if self.limit_bytes is None else min(self.limit_bytes, self.memory_bytes)

    @property
    def capability(self) -> int:
        """Compute capability as one number, 80 for an A100."""
        return 10 * self.compute_capability[0] + self.compute_capability[1]


def spec_of(values: Mapping[str, Any]) -> TrainSpec:
    """A checked configuration from plain values.

    Raises:
        ConfigError: a name is unknown, a value is impossible or two settings contradict each other.
    """
    try:
        spec = msgspec.convert(dict(values), TrainSpec, strict=False)
    except msgspec.ValidationError as exc:
        raise ConfigError(f"training settings: {exc}") from exc
    unknown = set(values) - {f.name for f in msgspec.structs.fields(TrainSpec)}
    if unknown:
        raise ConfigError(f"training settings: unknown {', '.join(sorted(unknown))}")
    check_spec(spec)
    return spec


def check_spec(spec: TrainSpec) -> None:
    """Refuse a configuration that cannot be trained.

    Raises:
        ConfigError: with the contradiction in one line.
    """
    for name in ("micro_batch", "sequence_length", "gradient_accumulation", "world_size", "checkpoint_every_n_layers"):
        if getattr(spec, name) < 1:
            raise ConfigError(f"{name} must be at least 1, not {getattr(spec, name)}")
    if spec.task not in TASKS:
        raise ConfigError(f"task {spec.task!r} is unknown; known: {', '.join(TASKS)}")
    if spec.quantization != "none" and spec.peft is None:
        raise ConfigError(f"a {spec.quantization} model has no trainable weights: set peft")
    if spec.quantization != "none" and spec.strategy in ("zero3", "fsdp2") and spec.quantization == "int8":
        raise ConfigError(f"int8 weights cannot be sharded by {spec.strategy}")
    if spec.strategy == "none" and spec.world_size > 1:
        raise ConfigError(f"world_size {spec.world_size} needs a strategy (ddp, fsdp, zero1, zero2, zero3)")
