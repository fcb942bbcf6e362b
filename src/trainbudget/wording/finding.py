"""A finding in at most three lines: money and what is wrong, the one change, the code last."""

from __future__ import annotations

from typing import Any

from trainbudget.engine.report import Report
from trainbudget.findings import Advice, Finding
from trainbudget.wording.numbers import count, duration, money

_INDENT = "        "


def headline(finding: Finding, report: Report | None = None) -> str:
    """One sentence: the money it burns an hour where that is known, then what is wrong."""
    text = finding.summary or finding.code.replace("_", " ")
    rate = waste_per_hour(finding, report)
    if rate is not None and report is not None:
        return f"{money(rate, report.currency)}/h wasted: {text}"
    return text


def waste_per_hour(finding: Finding, report: Report | None) -> float | None:
    """Money an hour that a waste finding costs: its share of the time, times all charged GPUs, times the price."""
    ratio = finding.evidence.get("waste_ratio", finding.evidence.get("wait_ratio"))
    if report is None or report.price is None or report.price.per_gpu_hour is None or not isinstance(ratio, (int, float)):
        return None
    return ratio * report.price.per_gpu_hour * report.charged_gpus


def forecast_text(finding: Finding, now_s: float) -> str | None:
    """`at about step 1,557 (1,370 - 1,729)`, or in time where steps are not the driver."""
    forecast = finding.forecast_latest or finding.forecast
    if forecast is None:
        return None
    if forecast.at_step is not None:
        text = f"at about step {count(forecast.at_step)}"
        if forecast.low is not None and forecast.high is not None:
            text += f" ({count(forecast.low)} - {count(forecast.high)})"
        if forecast.at_s is not None:
            text += f", in {duration(max(0.0, forecast.at_s - now_s))}"
        return text
    if forecast.at_s is None:
        return None
    text = f"in {duration(max(0.0, forecast.at_s - now_s))}"
    if forecast.low is not None and forecast.high is not None:
        text += f" ({duration(max(0.0, forecast.low - now_s))} - {duration(max(0.0, forecast.high - now_s))})"
    return text


def advice_text(advice: Advice, currency: str | None) -> str:
    """`Try dataloader_num_workers=8 (now 4): saves up to 17 min and 0.42 USD of this run.`"""
    saving: dict[str, Any] = advice.saving
    parts = []
    if saving.get("time_s"):
        parts.append(duration(saving["time_s"]))
    if saving.get("cost"):
        parts.append(money(saving["cost"], saving.get("currency") or currency))
    gain = f": saves up to {' and '.join(parts)} of this run" if parts else ""
    side = f"; {saving['side_effect']}" if saving.get("side_effect") else ""
    return f"Try {advice.setting}{gain}{side}."


def finding_lines(finding: Finding, report: Report | None = None) -> list[str]:
    """The finding as log lines without their level; the code stands at the end of the last one."""
    where = "" if finding.gpu is None or (report is not None and len(report.gpus) < 2) else f"GPU {finding.gpu}: "
    where += "" if finding.rank is None else f"rank {finding.rank}: "
    text = headline(finding, report)
    if where and not text.startswith(where.split(":")[0]):
        text = where + text
    forecast = forecast_text(finding, finding.raised_s)
    lines = [text + (f" - {forecast}" if forecast and forecast not in text else "")]
    lines += [_INDENT + advice_text(a, report.currency if report is not None else None) for a in finding.advice[:2]]
    lines[-1] += f"   [{finding.name}]"
    return lines
