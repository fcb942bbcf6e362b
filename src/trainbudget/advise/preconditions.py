"""When a lever makes no sense for this run, however well it fits the finding."""

from __future__ import annotations

from collections.abc import Callable

from trainbudget.advise.levers import Lever
from trainbudget.advise.values import Run


def sensible(lever: Lever, run: Run) -> bool:
    """Whether nothing that is known of the run speaks against the lever."""
    check = _CHECKS.get(lever.id)
    return check is None or check(run)


def _on(run: Run, *names: str) -> bool:
    return any(run.settings.get(name) not in (None, False, "", "no", "none", 0) for name in names)


def _has_workers(run: Run) -> bool:
    """Prefetch without workers is an error (torch DataLoader)."""
    workers = run.number("dataloader_num_workers")
    return (workers if workers is not None else run.evidence("loader_workers")) != 0


def _micro_batch_can_shrink(run: Run) -> bool:
    micro = run.number("per_device_train_batch_size")
    return micro is None or micro > 1


def _several_ranks(run: Run) -> bool:
    return (run.report.header.world_size or 1) > 1 or run.report.charged_gpus > 1


def _not_half(run: Run) -> bool:
    return not _on(run, "bf16", "fp16") and "16" not in str(run.settings.get("precision", ""))


def _recomputes(run: Run) -> bool:
    return _on(run, "activation_checkpointing", "gradient_checkpointing") or run.finding.code == "needless_recompute"


def _eager(run: Run) -> bool:
    """Only where attention is known to be eager: the frameworks' own default is the fused one."""
    model = run.report.model
    return model is not None and (model.attention or "").lower() == "eager"


def _trials_allowed(run: Run) -> bool:
    return not _on(run, "deepspeed")  # ZeRO-3 and the batch-size finder exclude each other


_CHECKS: dict[str, Callable[[Run], bool]] = {
    "L02": _has_workers,
    "L09": _micro_batch_can_shrink,
    "L11": _recomputes,
    "L12": _not_half,
    "L16": _eager,
    "L22": _several_ranks,
    "L24": _several_ranks,
    "L25": _several_ranks,
    "L26": _several_ranks,
    "L36": _several_ranks,
    "L39": _trials_allowed,
}
