"""Build a Hugging Face model from its configuration on the simulated device and trace the step a Trainer would run."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.utils._pytree import tree_map

from trainbudget.errors import ConfigError
from trainbudget.plan.layers.config import with_depth
from trainbudget.plan.simulated_device.backend import HALF
from trainbudget.plan.tracing.optimizers import OptimizerChoice, optimizer_of
from trainbudget.plan.tracing.step import UNSHARDED, StepSettings, trace_step
from trainbudget.plan.tracing.trace import Trace
from trainbudget.plan.train_spec import TargetGpu, TrainSpec, check_spec

AUTO_CLASSES = {
    "causal_lm": "AutoModelForCausalLM",
    "masked_lm": "AutoModelForMaskedLM",
    "sequence_classification": "AutoModelForSequenceClassification",
    "token_classification": "AutoModelForTokenClassification",
    "question_answering": "AutoModelForQuestionAnswering",
    "seq2seq": "AutoModelForSeq2SeqLM",
    "image_classification": "AutoModelForImageClassification",
}
AUTOCAST = {"fp16": "float16", "bf16": "bfloat16"}
PURE = {"bf16_pure": "bfloat16", "fp16_pure": "float16"}
SHARDED_COMPUTE = ("zero1", "zero2", "zero3")  # DeepSpeed casts the module itself and enters no autocast
LOW_PRECISION_COPY = ("fsdp", "fsdp2")  # compute happens in a gathered copy of the low precision


def trace_config(model_config: Mapping[str, Any] | str | Path, spec: TrainSpec, target: TargetGpu) -> Trace:
    """The traced step; see ``trainbudget.plan.memory.trace_config``.

    Raises:
        ConfigError: the configuration cannot be read or contradicts ``spec``.
        TraceFailed: the model cannot be traced, with the reason in one line.
    """
    check_spec(spec)
    build = model_builder(model_config, spec)
    choice = optimizer_of(spec.optimizer)
    settings = StepSettings(
        spec=spec,
        autocast=AUTOCAST.get(spec.precision) if spec.strategy not in SHARDED_COMPUTE else None,
        vocabulary=_vocabulary(build.config),
    )
    trace = trace_step(
        model=build,
        batches=[example_batch(build.config, spec)],
        training_step=_trainer_step(spec),
        optimizer_factory=choice.build,
        target=target,
        settings=settings,
        evaluation_step=_evaluation_step(spec) if spec.evaluation is not None else None,
    )
    return _described(trace, spec, choice)


def _described(trace: Trace, spec: TrainSpec, choice: OptimizerChoice) -> Trace:
    said = [choice.note] if choice.note else []
    return msgspec.structs.replace(
        trace,
        optimizer=spec.optimizer,
        state_tensors=choice.state_tensors,
        state_item_bytes=choice.state_item_bytes,
        optimizer_scratch=choice.scratch,
        not_understood=[*trace.not_understood, *([] if choice.exact else said)],
        remarks=[*trace.remarks, *(said if choice.exact else [])],
    )


class ModelBuilder:
    """Builds the model inside a trace: configuration, dtype, quantization, adapters, checkpointing."""

    def __init__(self, config: Any, spec: TrainSpec, build: Callable[[], torch.nn.Module] | None = None) -> None:
        self.config = config
        self._spec = spec
        self._build = build

    def __call__(self) -> torch.nn.Module:
        spec = self._spec
        model = self._build() if self._build is not None else self._from_transformers()
        if spec.quantization != "none":
            from trainbudget.plan.quantized import quantize

            model = quantize(model, spec.quantization, version=spec.quantization_stack)
        if spec.activation_checkpointing is not None:
            _enable_checkpointing(model, spec)
        if spec.peft is not None:
            from trainbudget.plan.tracing.adapters import with_adapter

            model = with_adapter(model, spec)
        return model.train()

    def _from_transformers(self) -> torch.nn.Module:
        import transformers

        auto = getattr(transformers, AUTO_CLASSES[self._spec.task])
        dtype = getattr(torch, model_dtype(self._spec))
        flash = self._spec.attention.startswith("flash")
        # Without a name the class takes sdpa, or eager where it has no other (Gemma 2, BLOOM), as it does for the user.
        named = None if flash or self._spec.attention == "sdpa" else self._spec.attention
        with _without_initialisers():
            model = auto.from_config(self.config, dtype=dtype, attn_implementation=named)
        if flash:
            from trainbudget.plan.tracing.flash_attention import use_flash_attention

            use_flash_attention(model)
        model.tie_weights()  # left out together with the initialisers
        return model.to(dtype)


def model_builder(model_config: Mapping[str, Any] | str | Path, spec: TrainSpec) -> ModelBuilder:
    """The builder of a model from configuration values, a file, a directory or ``package.module:function``.

    Raises:
        ConfigError: none of these can be read.
    """
    if isinstance(model_config, str) and ":" in model_config and not Path(model_config).exists():
        module, _, name = model_config.partition(":")
        try:
            build = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as exc:
            raise ConfigError(f"{model_config}: {exc}") from exc
        return ModelBuilder(None, spec, build)
    values = dict(model_config) if isinstance(model_config, Mapping) else _read_values(Path(model_config))
    if spec.layers is not None:
        values = with_depth(values, spec.layers)
    return ModelBuilder(_hugging_face_config(values, spec), spec)


def import_model_code(config: Any, spec: TrainSpec) -> None:
    """Import what building and tracing this model will need: once, before traces are forked off, instead of in each of them."""
    import contextlib

    import torch._dynamo  # noqa: F401 - the first optimizer would
    import transformers

    with contextlib.suppress(Exception):  # a model that is not there is told of by whoever builds it
        getattr(transformers, AUTO_CLASSES[spec.task])._model_mapping[type(config)]
    with contextlib.suppress(Exception):  # likewise, also where the installed versions do not go together
        if spec.peft is not None:
            import peft  # noqa: F401


def _read_values(path: Path) -> dict[str, Any]:
    path = path / "config.json" if path.is_dir() else path
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{path}: no readable model configuration ({exc})") from exc
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: a model configuration is an object, not {type(values).__name__}")
    return values


def _hugging_face_config(values: dict[str, Any], spec: TrainSpec) -> Any:
    from transformers import CONFIG_MAPPING

    kind = str(values.get("model_type"))
    if kind not in CONFIG_MAPPING:
        raise ConfigError(f"model_type {kind!r} is unknown to the installed transformers")
    values = {
        k: v for k, v in values.items() if k not in ("model_type", "quantization_config", "auto_map", "dtype", "torch_dtype")
    }
    if "classification" in spec.task and "num_labels" not in values and "id2label" not in values:
        values["num_labels"] = spec.labels
    try:
        config = CONFIG_MAPPING[kind](**values)
    except Exception as exc:  # a configuration class validates in its own ways
        raise ConfigError(f"model_type {kind!r}: {' '.join(str(exc).split())[:200]}") from exc
    if "classification" in spec.task and getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = 0
    if spec.task == "seq2seq" and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = 0
    return config


def model_dtype(spec: TrainSpec) -> str:
    """torch name of the dtype the model is loaded in."""
    if spec.model_dtype is not None:
        return spec.model_dtype.removeprefix("torch.")
    if spec.precision in PURE:
        return PURE[spec.precision]
    if spec.strategy in SHARDED_COMPUTE + LOW_PRECISION_COPY and spec.precision in AUTOCAST:
        return AUTOCAST[spec.precision]
    if spec.quantization != "none":
        return AUTOCAST.get(spec.precision, "float32")
    return "float32"


def _without_initialisers() -> Any:
    """transformers' own switch against weight initialisation: values do not matter here."""
    import contextlib

    for module in ("transformers.initialization", "transformers.modeling_utils"):
        try:
            switch = getattr(importlib.import_module(module), "no_init_weights", None)
        except ImportError:
            continue
        if switch is not None:
            return switch()
    return contextlib.nullcontext()


def _enable_checkpointing(model: torch.nn.Module, spec: TrainSpec) -> None:
    kwargs = {"use_reentrant": spec.activation_checkpointing == "reentrant"}
    try:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=kwargs)  # type: ignore[operator]
    except (AttributeError, ValueError) as exc:
        raise ConfigError(f"activation_checkpointing: {exc}") from exc
    if spec.peft is not None or spec.quantization != "none":
        model.enable_input_require_grads()  # type: ignore[operator]
    if spec.checkpoint_every_n_layers > 1:
        layers = [
            m for m in model.modules() if hasattr(m, "gradient_checkpointing") and hasattr(m, "_gradient_checkpointing_func")
        ]
        for index, layer in enumerate(
            m for m in layers if not any(True for c in m.children() if hasattr(c, "gradient_checkpointing"))
        ):
            layer.gradient_checkpointing = index % spec.checkpoint_every_n_layers == 0  # type: ignore[assignment]


def _vocabulary(config: Any) -> int | None:
    text = getattr(config, "get_text_config", lambda: config)() if config is not None else None
    return getattr(text, "vocab_size", None)


def example_batch(config: Any, spec: TrainSpec) -> dict[str, torch.Tensor]:
    """Host tensors of the shapes and dtypes one micro-batch has; values do not matter."""
    batch, length = spec.micro_batch, spec.sequence_length
    if spec.task == "image_classification":
        size = getattr(config, "image_size", 224)
        height, width = (size, size) if isinstance(size, int) else tuple(size)
        images = torch.empty(batch, getattr(config, "num_channels", 3), height, width, device="meta")
        return {"pixel_values": images, "labels": torch.empty(batch, dtype=torch.long, device="meta")}
    ids = torch.empty(batch, length, dtype=torch.long, device="meta")
    values: dict[str, torch.Tensor] = {"input_ids": ids}
    if not spec.pad:
        values["attention_mask"] = torch.empty_like(ids)
    if spec.task == "sequence_classification":
        values["labels"] = torch.empty(batch, dtype=torch.long, device="meta")
    elif spec.task == "question_answering":
        values["start_positions"] = torch.empty(batch, dtype=torch.long, device="meta")
        values["end_positions"] = torch.empty(batch, dtype=torch.long, device="meta")
    elif spec.task == "seq2seq":
        values["labels"] = torch.empty(batch, spec.target_length or length, dtype=torch.long, device="meta")
    else:
        values["labels"] = torch.empty_like(ids)
    return values


def _trainer_step(spec: TrainSpec) -> Callable[[Any, Any], Any]:
    """What ``Trainer.compute_loss`` does around the model: accelerate turns half-precision outputs into fp32 under mixed
    precision."""
    convert = spec.loop == "trainer" and spec.precision in AUTOCAST and spec.strategy not in SHARDED_COMPUTE

    def step(model: Any, batch: Any) -> Any:
        outputs = model(**batch, **_without_cache(model))
        if convert:
            outputs = type(outputs)(**tree_map(_as_fp32, dict(outputs)))
        return outputs["loss"]

    return step


def _evaluation_step(spec: TrainSpec) -> Callable[[Any, Any], Any]:
    convert = spec.precision in AUTOCAST

    def step(model: Any, batch: Any) -> Any:
        outputs = model(**batch, **_without_cache(model))
        logits = outputs["logits"] if "logits" in outputs else outputs[1]
        return _as_fp32(logits) if convert else logits

    return step


def _without_cache(model: Any) -> dict[str, Any]:
    config = getattr(model, "config", None)
    return {"use_cache": False} if hasattr(config, "use_cache") else {}


def _as_fp32(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in HALF else value


__all__ = ["UNSHARDED", "ModelBuilder", "example_batch", "model_builder", "model_dtype", "trace_config"]
