"""Putting a run together: header, price, sinks, sampler, feeder. Everything slow happens on our own threads."""

from __future__ import annotations

import datetime
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from trainbudget.config import Settings
from trainbudget.engine.detect import RECORDS
from trainbudget.events import Bound, BudgetFact, Gpu, Header, Host, Number, Price
from trainbudget.live.identity import Ranks

_log = logging.getLogger("trainbudget")

#: Distributions whose versions explain a run.
_VERSIONS = ("trainbudget", "torch", "transformers", "accelerate", "lightning", "pytorch-lightning", "peft", "trl", "datasets")
#: Settings of the frameworks that go into the record: what costs or saves memory, time and money. Everything else,
#: above all names, paths and tokens, stays out.
_ALLOWED_TEXT = """
    per_device_train_batch_size per_device_eval_batch_size train_batch_size gradient_accumulation_steps
    accumulate_grad_batches max_steps num_train_epochs max_epochs fp16 bf16 tf32 precision optim optimizer learning_rate
    gradient_checkpointing torch_compile dataloader_num_workers dataloader_pin_memory dataloader_prefetch_factor
    dataloader_persistent_workers dataloader_drop_last group_by_length train_sampling_strategy length_column_name
    logging_steps logging_strategy logging_nan_inf_filter eval_strategy evaluation_strategy eval_steps
    eval_accumulation_steps save_strategy save_steps save_total_limit save_only_model max_grad_norm warmup_steps
    auto_find_batch_size fsdp deepspeed ddp_find_unused_parameters strategy devices num_nodes accelerator
    log_every_n_steps val_check_interval check_val_every_n_epoch limit_val_batches num_sanity_val_steps
    include_num_input_tokens_seen prediction_loss_only torch_empty_cache_steps average_tokens_across_devices
    resume_from_checkpoint world_size n_gpu seed
"""
ALLOWED_SETTINGS = frozenset(_ALLOWED_TEXT.split())


@dataclass(slots=True)
class RunFacts:
    """What is known of the run when it starts; adapters fill it in before `train_begin`."""

    framework: str = "loop"
    name: str = "run"
    id: str = ""
    ranks: Ranks = field(default_factory=Ranks)
    given_ranks: Ranks | None = None  # what the framework says, for launchers that set no variables
    directory: Path | None = None
    started_unix_s: float = 0.0
    process_started_s: float = 0.0
    host: Host | None = None
    settings: dict[str, Any] = field(default_factory=dict)


def header_of(run: RunFacts, settings: Settings, sampler: Any) -> Header:
    """The trace's first line: who runs what where, under which budget and price."""
    backend = sampler.backend
    given = settings.budget.fact() if settings.budget is not None else BudgetFact()
    return Header(
        t_s=0.0,
        run=run.name,
        id=run.id,
        framework=run.framework,
        backend=backend.name if backend is not None else "none",
        backend_error=sampler.error,
        driver_version=backend.driver_version if backend is not None else None,
        sample_period_s=settings.sample_period_s,
        pid=os.getpid(),
        process_started_s=run.process_started_s,
        rank=run.ranks.rank,
        local_rank=run.ranks.local_rank,
        world_size=run.ranks.world_size,
        started_at=_utc(run.started_unix_s),
        host=run.host,
        settings=allowed(run.settings),
        environment=environment(),
        budget=given,
        ignore=list(settings.ignore) or None,
        thresholds=dict(settings.thresholds) or None,
    )


def finding_names() -> dict[str, tuple[str, ...]]:
    """Every finding's code with the names of its thresholds, as `ignore` and `thresholds` may name them."""
    return {code: tuple(threshold.name for threshold in record.thresholds) for code, record in RECORDS.items()}


def price_of(settings: Settings, gpus: tuple[Gpu, ...], t_s: float) -> Price | None:
    """The price of one GPU-hour with its source: given, else from a dated row; None = GPU-hours and no money."""
    if settings.price is not None:
        today = datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat()
        price = settings.price
        return Price(t_s=t_s, per_gpu_hour=price.amount, currency=currency_of(settings), source="given", date=today)
    from trainbudget.plan.prices import resolve

    name = next((g.name for g in gpus if g.owned and g.name), None)
    if name is None:
        return None
    quote = resolve(name)
    if quote is None:
        return None
    if settings.budget is not None and settings.budget.currency not in (None, quote.currency):
        _log.warning(
            "the budget is in %s, the list price of this card in %s: no money is counted; give a price, for example '2.49 %s/h'",
            *(settings.budget.currency, quote.currency, settings.budget.currency),
        )
        return None
    return quote.fact(t_s)


def currency_of(settings: Settings) -> str:
    """Of a given price: its own, else the budget's."""
    given = (settings.price, settings.budget)
    return next((what.currency for what in given if what is not None and what.currency), "USD")


def with_gpu(request: Mapping[str, Any], gpus: Sequence[Gpu], settings: Settings, ranks: Ranks) -> dict[str, Any]:
    """A plan's tables, with the card that this process trains on, the number of ranks and the price that is paid.

    Raises:
        ValueError: no card of ours has a name.
    """
    name = next((gpu.name for gpu in gpus if gpu.owned and gpu.name), None)
    if name is None:
        raise ValueError("no GPU to plan for")
    money = None if settings.price is None else f"{settings.price.amount} {currency_of(settings)}/h"
    gpu = {"name": name, "count": ranks.world_size, "price_per_hour": money}
    return {**request, "tables": {**request["tables"], "gpu": gpu}}


def allowed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values of allow-listed settings; never a path, a token or an object."""
    out: dict[str, Any] = {}
    for name, value in settings.items():
        if name not in ALLOWED_SETTINGS or value is None:
            continue
        if name == "resume_from_checkpoint":
            out[name] = bool(value)
        elif isinstance(value, (bool, int, float)):
            out[name] = value
        elif isinstance(value, (str, list, tuple)) and not isinstance(value, os.PathLike):
            text = str(getattr(value, "value", value))  # enums print their value
            if os.sep not in text and len(text) <= 64:
                out[name] = text
        else:
            out[name] = type(value).__name__
    return out


def environment() -> dict[str, Any]:
    """Versions that explain a run. Reads package metadata only; imports nothing."""
    out: dict[str, Any] = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in _VERSIONS:
        try:
            out[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return out


def merged_budget(**numbers: Number) -> BudgetFact | None:
    """A budget fact of what is known, or None of nothing."""
    known: dict[str, Any] = {name: value for name, value in numbers.items() if value is not None}
    return BudgetFact(**known) if known else None


def planned(value: float | None, source: str) -> Bound | None:
    return None if value is None else Bound(value=float(value), source=source)


def _utc(unix_s: float) -> str:
    return datetime.datetime.fromtimestamp(unix_s, tz=datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def backend_factory(name: str, run: RunFacts) -> Callable[[], Any]:
    """Makes a backend on the thread that will use it."""

    def make() -> Any:
        from trainbudget.gpu import open_backend
        from trainbudget.live.probes.host import process_lookup

        return open_backend(
            name,
            process_info=process_lookup(run.started_unix_s),
            local_rank=run.ranks.local_rank or 0,
            local_world_size=run.ranks.local_world_size or 1,
        )

    return make
