"""The numbers in a piece of advice, worked out from the run. What cannot be worked out stays a word: `N`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainbudget.engine.report import Report
from trainbudget.findings import Finding

#: Loader processes where there are none yet: enough to find out, few enough for any machine.
FIRST_WORKERS = 4


@dataclass(frozen=True, slots=True)
class Run:
    """What values are worked out from."""

    finding: Finding
    report: Report

    @property
    def settings(self) -> dict[str, Any]:
        return self.report.header.settings or {}

    def number(self, *names: str) -> float | None:
        """The first of these settings that is a number."""
        for name in names:
            value = self.settings.get(name)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                return float(value)
        return None

    def evidence(self, name: str) -> float | None:
        value = self.finding.evidence.get(name)
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def words_for(run: Run) -> dict[str, str | None]:
    """Every placeholder's text; None where it cannot be worked out."""
    return {name: work_out(run) for name, work_out in WORDS.items()}


def word(name: str) -> str:
    """What stands for a placeholder that cannot be worked out."""
    return _UNKNOWN.get(name, "N")


def _whole(value: float | None) -> str | None:
    return None if value is None else f"{value:.0f}"


def _cpus(run: Run) -> int | None:
    host = run.report.header.host
    return host.cpu_count if host is not None else None


def _workers(run: Run) -> str | None:
    """As many as would keep up: now x (wait + step) / step, within the CPUs of one GPU."""
    now = run.number("dataloader_num_workers")
    if now is None:
        now = run.evidence("loader_workers")
    wait_s, step_s = run.evidence("wait_s"), run.evidence("step_time_s")
    wanted = FIRST_WORKERS if not now else 2.0 * now
    if now and wait_s is not None and step_s:
        wanted = now * (wait_s + step_s) / step_s
    cpus = _cpus(run)
    room = None if cpus is None else max(1, cpus // max(1, len([g for g in run.report.gpus if g.owned])))
    # Doublings are what people type; the next one up covers what is wanted.
    workers = 2 ** math.ceil(math.log2(max(2.0, wanted)))
    if now is not None and workers <= now:
        workers = int(2 * now)
    return str(min(workers, room) if room is not None else workers)


def _prefetch(run: Run) -> str:
    now = run.number("dataloader_prefetch_factor") or 2.0
    return f"{2 * now:.0f}"


def _accumulation(run: Run) -> float | None:
    return run.number("gradient_accumulation_steps", "accumulate_grad_batches")


def _accumulation_half(run: Run) -> str | None:
    now = _accumulation(run)
    return _whole(max(1.0, now / 2.0)) if now is not None and now > 1 else None


def _accumulation_double(run: Run) -> str | None:
    now = _accumulation(run)
    return _whole(2.0 * now) if now is not None else None


def _micro(run: Run, factor: float) -> str | None:
    now = run.number("per_device_train_batch_size")
    return _whole(max(1.0, now * factor)) if now is not None else None


def _times(run: Run, name: str, factor: float) -> str | None:
    now = run.number(name)
    return _whole(now * factor) if now is not None and now >= 1 else None


def _save_wider(run: Run) -> str | None:
    """Far enough apart that saving takes half of what is too much (5 %)."""
    now, ratio = run.number("save_steps"), run.evidence("share_ratio")
    if now is None or now < 1 or ratio is None or ratio >= 1.0:
        return None
    return _round_up(now * (ratio / (1.0 - ratio)) / (0.025 / 0.975))


def _eval_double(run: Run) -> str | None:
    """Far enough apart that evaluation takes half of what is too much (15 %), at least twice as far."""
    now, ratio = run.number("eval_steps"), run.evidence("share_ratio")
    if now is None or now < 1:
        return None
    wider = now * (ratio / (1.0 - ratio)) / (0.075 / 0.925) if ratio is not None and ratio < 1.0 else 2.0 * now
    return _round_up(max(wider, 2.0 * now))


def _save_hourly(run: Run) -> str | None:
    step_s = run.report.steps.step_time_s
    return _round_up(3600.0 / step_s) if step_s else None


def _round_up(value: float) -> str:
    """To two digits: nobody types 873."""
    scale = 10 ** max(0, math.floor(math.log10(max(1.0, value))) - 1)
    return str(int(math.ceil(value / scale) * scale))


def _half(run: Run) -> str | None:
    """bf16 from compute capability 8.0 on, fp16 before it."""
    known = [g.info.compute_capability for g in run.report.gpus if g.owned and g.info.compute_capability]
    try:
        able = min(float(text) for text in known) if known else run.evidence("compute_capability")
    except ValueError:
        return None
    return None if able is None else "bf16" if able >= 8.0 else "fp16"


def _half_dtype(run: Run) -> str | None:
    word = _half(run)
    return None if word is None else "bfloat16" if word == "bf16" else "float16"


def _half_gpus(run: Run) -> str | None:
    gpus = run.evidence("gpus") or float((run.report.header.world_size or 1) * max(1, run.report.charged_gpus))
    return _whole(gpus / 2.0) if gpus >= 2 else None


def _used(run: Run) -> str | None:
    used = [str(g.info.gpu) for g in run.report.gpus if g.owned and not g.unused]
    return ",".join(used) if used and len(used) < len(run.report.gpus) else None


def _used_count(run: Run) -> str | None:
    used = sum(1 for g in run.report.gpus if g.owned and not g.unused)
    return str(used) if used else None


def _log_wider(run: Run) -> str:
    now = run.number("logging_steps", "log_every_n_steps")
    return _whole(now * 10.0) or "50" if now is not None and now >= 1 else "50"


def _threads(run: Run) -> str | None:
    cpus = _cpus(run)
    local = max(1, run.report.charged_gpus)
    return None if cpus is None else str(max(1, cpus // local // 2))


def _processes(run: Run) -> str | None:
    cpus = _cpus(run)
    return None if cpus is None else str(max(1, cpus // 2))


_UNKNOWN = {
    "half": "bf16",
    "with_bf16": "True",
    "with_fp16": "True",
    "half_dtype": "bfloat16",
    "shorter": "length",
    "fraction": "f",
    "used": "ids",
}

WORDS: dict[str, Callable[[Run], str | None]] = {
    "workers": _workers,
    "prefetch": _prefetch,
    "accumulation_half": _accumulation_half,
    "accumulation_double": _accumulation_double,
    "micro_half": lambda run: _micro(run, 0.5),
    "micro_double": lambda run: _micro(run, 2.0),
    "eval_double": _eval_double,
    "eval_batch": lambda run: _times(run, "per_device_eval_batch_size", 2.0),
    "save_wider": _save_wider,
    "save_hourly": _save_hourly,
    "log_wider": _log_wider,
    "half": _half,
    "with_bf16": lambda run: "True" if _half(run) == "bf16" else None,
    "with_fp16": lambda run: "True" if _half(run) == "fp16" else None,
    "half_dtype": _half_dtype,
    "half_gpus": _half_gpus,
    "used": _used,
    "used_count": _used_count,
    "threads": _threads,
    "processes": _processes,
    "shorter": lambda run: None,
    "fraction": lambda run: None,
}
