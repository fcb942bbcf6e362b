"""One alert for each finding code, rendered from the code's record; a few carry the number that matters most to them."""

from __future__ import annotations

from collections.abc import Iterable

from trainbudget.catalog.alert_spec import AlertSpec
from trainbudget.catalog.alert_text import BYTES, DURATION, PERCENT, look_up, name_it, of_run, spend, wasted
from trainbudget.catalog.gpu_metrics import ECC, HEADROOM, LOST, TEMPERATURE, THROTTLED, UTILIZATION
from trainbudget.catalog.money_metrics import FINDING_ACTIVE, PRICE
from trainbudget.catalog.recording import (
    FINDING,
    JOB_BUDGET,
    JOB_COST,
    JOB_PROJECTED,
    LEAST_HEADROOM,
    OOM_IN,
    STEP_AGE,
    WASTED_SHARE,
)
from trainbudget.catalog.run_metrics import (
    BUDGET_RUN,
    BUDGET_STEP,
    CHARGED_GPUS,
    DATA_WAIT,
    PROJECTED_RUN,
    REPORT_TIME,
    STEP_MEDIAN,
)
from trainbudget.findings import CodeRecord, Route

#: Findings about a process that is about to die: they are remembered long enough to be delivered.
POST_MORTEM = ("oom", "rank_failed_first")
REMEMBER = "15m"
#: A condition that the engine has already debounced needs little more; what clears itself within minutes is no ticket.
HOLD = {Route.PAGE: "30s", Route.TICKET: "5m", Route.WEEKLY: "10m"}

#: Cost stands for the ticket until the money is spent; then somebody has to decide at once.
_PAGE_WHEN_CRITICAL = ("cost_over_budget",)
_SEVERE_ONLY = '{{ if eq $labels.severity "critical" }}page{{ else }}ticket{{ end }}'

_OOM = look_up(" in about ", of_run(OOM_IN, how="min"), "", how=DURATION) + look_up(
    " (", of_run(LEAST_HEADROOM, how="min"), "B left at the worst moment so far)", how=BYTES
)
_BUCKET_SHARE = WASTED_SHARE.name + '{run=$RUN,bucket="BUCKET"}'


def _share(bucket: str) -> str:
    return look_up(" (", f"max({_BUCKET_SHARE.replace('BUCKET', bucket)})", " of the GPU time)", how=PERCENT)


#: The number that belongs into the first line, by code.
NUMBERS: dict[str, str] = {
    "oom_forecast": _OOM,
    "oom_predicted": _OOM,
    "oom_next_phase": _OOM,
    "memory_pressure": look_up(" (", of_run(HEADROOM, how="min"), "B left)", how=BYTES),
    "memory_leak": look_up(" (", of_run(HEADROOM, how="min"), "B left)", how=BYTES),
    "input_bound": look_up(" (", of_run(DATA_WAIT), " of the time)", how=PERCENT),
    "gpu_idle": look_up(" (utilization ", of_run(UTILIZATION), ")", how=PERCENT),
    "hang": look_up(": no step for ", of_run(STEP_AGE), "", how=DURATION),
    "collective_hang": look_up(": no step for ", of_run(STEP_AGE), "", how=DURATION),
    "gpu_lost": name_it(",", f"{LOST.name}{{run=$RUN}} == 1", "GPU=gpu rank=rank"),
    "straggler": name_it(",", f"topk(1, max by (rank) ({STEP_MEDIAN.name}{{run=$RUN}}))", "rank=rank"),
    "power_cap": name_it(",", f"topk(1, max by (reason) ({THROTTLED.name}{{run=$RUN}} == 1))", "=reason"),
    "ecc_errors": name_it(",", f'topk(1, max by (rank, gpu) ({ECC.name}{{run=$RUN,kind="uncorrected"}}))', "GPU=gpu rank=rank"),
    "thermal_throttle": look_up(" (", of_run(TEMPERATURE), " °C)", how='printf "%.0f"'),
    "cost_over_budget": look_up(": ", f"max by (currency) ({JOB_PROJECTED.name}{{run=$RUN}})", " in the end", currency=True)
    + look_up(", ", f"max by (currency) ({JOB_COST.name}{{run=$RUN}})", " spent", currency=True)
    + look_up(" of ", f"max by (currency) ({JOB_BUDGET.name}{{run=$RUN}})", "", currency=True),
    "time_over_budget": look_up(": ", of_run(PROJECTED_RUN), " in all", how=DURATION)
    + look_up(" of ", of_run(BUDGET_RUN), "", how=DURATION),
    "step_over_budget": look_up(": ", of_run(STEP_MEDIAN), " a step", how=DURATION)
    + look_up(", planned ", of_run(BUDGET_STEP), "", how=DURATION),
    "eval_share": _share("eval"),
    "save_share": _share("save"),
    "log_share": _share("log"),
    "padding_waste": _share("padding"),
    "unused_gpu": _share("idle"),
    "optimizer_offload": _share("optimizer_offload"),
}


def alert_name(code: str) -> str:
    return "Trainbudget" + "".join(part.capitalize() for part in code.split("_"))


def code_alerts(records: Iterable[CodeRecord]) -> tuple[AlertSpec, ...]:
    return tuple(_alert(record) for record in records)


def _alert(record: CodeRecord) -> AlertSpec:
    series = FINDING.at(code=record.code, severity="!=info")
    if record.code in POST_MORTEM:
        series = (
            f"max by ({', '.join(FINDING.labels)}) (max_over_time({FINDING.at(REMEMBER, code=record.code, severity='!=info')}))"
        )
    pages = record.route is Route.PAGE or record.code in _PAGE_WHEN_CRITICAL
    return AlertSpec(
        name=alert_name(record.code),
        code=record.code,
        expr=series,
        hold=HOLD[record.route] if record.code not in POST_MORTEM else "0s",
        severity=None,
        route=_SEVERE_ONLY if pages else record.route.value,
        summary=f"{{{{ $labels.run }}}}: {_plain(record.title)}{NUMBERS.get(record.code, '')}"
        "{{ if gt $value 1.0 }} on {{ $value }} ranks{{ end }}.",
        description=f"{_plain(record.condition)}{spend()}{wasted()}",
        title=record.title,
        condition=record.condition,
        runbook=record.runbook,
        fires=code_series(record.code, "critical" if pages else "warning"),
        silent=code_series(record.code, "info"),
    )


def code_series(code: str, severity: str) -> dict[str, str]:
    """A priced run of one GPU with one active finding, for an hour."""
    run = {"run": "a", "rank": "0"}
    return {
        REPORT_TIME.at(**run): "0+60x60",
        CHARGED_GPUS.at(**run): "1x60",
        PRICE.at(**run, currency="USD"): "2.5x60",
        FINDING_ACTIVE.at(**run, code=code, severity=severity): "1x60",
    }


def _plain(text: str) -> str:
    """Text that no template takes for its own, without its last full stop where more follows."""
    return text.replace("{{", "").replace("}}", "")
