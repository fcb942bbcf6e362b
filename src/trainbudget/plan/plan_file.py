"""PLAN.toml and the one-line flags become one `PlanRequest`. Keys are strict: an unknown one names the nearest valid key."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from trainbudget import budget
from trainbudget.errors import ConfigError
from trainbudget.plan import hardware
from trainbudget.plan.choices import check_values
from trainbudget.plan.request import Charges, Duration, PlanRequest
from trainbudget.plan.train_spec import EvalSpec, TrainSpec, spec_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class ModelTable(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`[model]`: what is trained."""

    config: str | dict[str, Any] | None = None  # config.json, its directory, a cached name, or an inline table
    import_: str | None = msgspec.field(default=None, name="import")  # pkg.mod:build
    task: str | None = None
    dtype: str | None = None
    attention: str | None = None
    labels: int | None = None


class TrainTable(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`[train]`: how it is trained, and for how long (steps, tokens or epochs with samples)."""

    micro_batch: int | None = None
    sequence_length: int | None = None
    target_length: int | None = None
    gradient_accumulation: int | None = None
    precision: str | None = None
    optimizer: str | None = None
    activation_checkpointing: bool | str | None = None
    checkpoint_every_n_layers: int | None = None
    peft: dict[str, Any] | None = None
    quantization: str | None = None
    max_grad_norm: float | None = None
    loop: str | None = None
    pad: bool | None = None
    steps: int | None = None
    tokens: float | None = None
    epochs: float | None = None
    samples: int | None = None  # examples in one epoch
    eval_steps: int | None = None  # optimizer steps between evaluations
    eval_batches: int | None = None
    eval_batch: int | None = None
    save_steps: int | None = None
    measured_step_time_s: float | None = None  # of one optimizer step: replaces the estimate
    preprocess_cpu_hours: float | None = None


class ParallelTable(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`[parallel]`: over how many processes, and how."""

    world_size: int | None = None
    strategy: str | None = None
    options: dict[str, Any] | None = None


class GpuTable(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`[gpu]`: the card and its price. `price_per_hour` is for one GPU."""

    name: str | None = None
    count: int | None = None
    memory_gib: float | None = None
    price_per_hour: str | float | None = None
    price_file: str | None = None
    provider: str | None = None
    instance: str | None = None
    region: str | None = None
    spot: bool | None = None


_TABLES: dict[str, type[msgspec.Struct]] = {"model": ModelTable, "train": TrainTable, "parallel": ParallelTable, "gpu": GpuTable}


def read_plan(path: Path) -> PlanRequest:
    """The plan of a PLAN.toml.

    Raises:
        ConfigError: in one line: unreadable, an unknown key, a wrong type, a contradiction.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    return plan_of(values, where=path.name, folder=path.parent)


def plan_of(values: Mapping[str, Any], *, where: str = "plan", folder: Path = Path(), vocabulary: str = "plan") -> PlanRequest:
    """A checked plan from plain tables.

    Raises:
        ConfigError: see `read_plan`.
    """
    _check_keys(values, where)
    flags = vocabulary == "flags"
    model = _table(values, "model", ModelTable, where)
    train = _table(values, "train", TrainTable, where)
    parallel = _table(values, "parallel", ParallelTable, where)
    gpu = _table(values, "gpu", GpuTable, where)
    for section, table in (("model", model), ("train", train), ("parallel", parallel), ("gpu", gpu)):
        check_values(section, msgspec.structs.asdict(table), where, flags=flags)
    if gpu.name is None:
        raise ConfigError(f'{where}: [gpu] needs name, for example name = "A100-80GB"')
    count = gpu.count or parallel.world_size or 1
    if min(count, parallel.world_size or 1) < 1:
        raise ConfigError(f"{where}: [gpu] count and [parallel] world_size must be at least 1")
    card = hardware.require_gpu(gpu.name)
    if gpu.memory_gib is None and card.memory_limit_bytes is None:
        raise ConfigError(f"{where}: the memory of {card.name} is not known: give [gpu] memory_gib")
    return PlanRequest(
        model=_model_of(model, where, folder),
        spec=_spec_of(model, train, parallel, count, where),
        gpu=card,
        count=count,
        memory_gib=gpu.memory_gib,
        duration=_duration_of(train, where),
        charges=_charges_of(gpu, where, folder),
        vocabulary=vocabulary,
    )


def _check_keys(values: Mapping[str, Any], where: str) -> None:
    for section, table in values.items():
        if section not in _TABLES:
            raise ConfigError(f"{where}: no table [{section}]{_nearest(section, _TABLES)}")
        if not isinstance(table, Mapping):
            raise ConfigError(f"{where}: [{section}] must be a table")
        known = [f.encode_name for f in msgspec.structs.fields(_TABLES[section])]
        for key in table:
            if key not in known:
                raise ConfigError(f"{where}: [{section}] has no key {key!r}{_nearest(key, known) or _elsewhere(key)}")


def _nearest(word: str, known: Any) -> str:
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


#: What the same setting is called by Hugging Face users.
_FOREIGN = {
    "per_device_train_batch_size": "micro_batch",
    "batch_size": "micro_batch",
    "seq": "sequence_length",
    "max_length": "sequence_length",
    "gradient_accumulation_steps": "gradient_accumulation",
    "optim": "optimizer",
    "gradient_checkpointing": "activation_checkpointing",
    "bf16": 'precision = "bf16"',
    "fp16": 'precision = "fp16"',
    "max_steps": "steps",
    "num_train_epochs": "epochs",
    "lora": 'peft = {type = "lora", r = 16}',
}


def _elsewhere(key: str) -> str:
    if key in _FOREIGN:
        return f"; it is {_FOREIGN[key]} here"
    homes = [s for s, t in _TABLES.items() if key in [f.encode_name for f in msgspec.structs.fields(t)]]
    return f"; it belongs in [{homes[0]}]" if homes else ""


def _table(values: Mapping[str, Any], section: str, kind: type[Any], where: str) -> Any:
    try:
        return msgspec.convert(values.get(section, {}), kind)
    except msgspec.ValidationError as error:
        text = str(error)
        match = re.search(r" - at `\$\.?(.*)`$", text)
        key = match.group(1) if match else ""
        told = text[: match.start()] if match else text
        raise ConfigError(f"{where}: [{section}] {key}: {told[0].lower()}{told[1:]}") from None


def _model_of(model: ModelTable, where: str, folder: Path) -> Mapping[str, Any] | str:
    if (model.config is None) == (model.import_ is None):
        raise ConfigError(f"{where}: [model] needs either config or import")
    if model.import_ is not None:
        if ":" not in model.import_:
            raise ConfigError(f"{where}: [model] import: write 'package.module:function', not {model.import_!r}")
        return model.import_
    if isinstance(model.config, Mapping):
        return model.config
    beside = folder / str(model.config)
    return str(beside) if beside.exists() else str(model.config)


def _spec_of(model: ModelTable, train: TrainTable, parallel: ParallelTable, count: int, where: str) -> TrainSpec:
    world_size = parallel.world_size or count
    checkpointing = train.activation_checkpointing
    values: dict[str, Any] = {
        "micro_batch": train.micro_batch,
        "sequence_length": train.sequence_length,
        "target_length": train.target_length,
        "gradient_accumulation": train.gradient_accumulation,
        "precision": train.precision,
        "optimizer": train.optimizer,
        # True means what the frameworks do by default today: non-reentrant.
        "activation_checkpointing": "non_reentrant"
        if checkpointing is True
        else None
        if checkpointing is False
        else checkpointing,
        "checkpoint_every_n_layers": train.checkpoint_every_n_layers,
        "peft": train.peft,
        "quantization": train.quantization,
        "max_grad_norm": train.max_grad_norm,
        "loop": train.loop,
        "pad": train.pad,
        "model_dtype": model.dtype,
        "attention": model.attention,
        "task": model.task,
        "labels": model.labels,
        "world_size": world_size,
        "strategy": parallel.strategy or ("ddp" if world_size > 1 else None),
        "strategy_options": parallel.options,
    }
    if train.eval_steps is not None or train.eval_batches is not None or train.eval_batch is not None:
        values["evaluation"] = EvalSpec(batch=train.eval_batch, batches=train.eval_batches or 100)
    try:
        return spec_of({k: v for k, v in values.items() if v is not None})
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _duration_of(train: TrainTable, where: str) -> Duration:
    told = [k for k in ("steps", "tokens", "epochs") if getattr(train, k) is not None]
    if len(told) > 1:
        raise ConfigError(f"{where}: [train] {' and '.join(told)} contradict each other: give one")
    if train.epochs is not None and train.samples is None:
        raise ConfigError(f"{where}: [train] epochs needs samples, the number of examples in one epoch")
    for key in ("steps", "tokens", "epochs", "samples", "eval_steps", "save_steps", "measured_step_time_s"):
        value = getattr(train, key)
        if value is not None and value <= 0:
            raise ConfigError(f"{where}: [train] {key} must be above 0, not {value}")
    names = [f.encode_name for f in msgspec.structs.fields(TrainTable)]
    return Duration(**{k: getattr(train, k) for k in Duration.__slots__ if k in names})


def _charges_of(gpu: GpuTable, where: str, folder: Path) -> Charges:
    if gpu.price_per_hour is not None:
        try:
            budget.parse_price(gpu.price_per_hour, what="price_per_hour")
        except ConfigError as error:
            raise ConfigError(f"{where}: [gpu] {error}") from None
        if gpu.provider or gpu.instance:
            raise ConfigError(f"{where}: [gpu] price_per_hour and provider contradict each other: give one")
    if gpu.instance and not gpu.provider:
        raise ConfigError(f"{where}: [gpu] instance needs provider")
    return Charges(
        given=gpu.price_per_hour,
        file=folder / gpu.price_file if gpu.price_file else None,
        provider=gpu.provider,
        instance=gpu.instance,
        region=gpu.region,
        spot=gpu.spot,
    )
