"""A finding in at most three sentences: money and what is wrong, what to do, the code last."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import msgspec

from trainbudget.engine.detect import RECORDS
from trainbudget.engine.report import Report
from trainbudget.findings import Advice, Finding, Severity
from trainbudget.wording.numbers import count, duration, money

#: Columns of a line: a terminal of 132 with the logger's prefix, and most windows without it.
WIDTH = 110
_INDENT = " " * 8
#: Continuation of a sentence that is longer than a line.
_DEEPER = " " * 10
#: Savings below these are noise of the bound itself.
LEAST_SAVING_S = 10.0
LEAST_MONEY = 0.01

#: Evidence that is a share of the wall time: what it costs an hour is that share of the price.
_WASTE_SHARE = {
    "input_bound": "wait_ratio",
    "epoch_start_overhead": "ratio",
    "gc_pause": "ratio",
    "launch_bound": "idle_ratio",
    "wasted_spend": "waste_ratio",
}
#: Phases that a runbook may have a sentence for.
_PHASES = ("save", "eval", "resume")
#: Evidence `what` that has a sentence of its own.
_WHATS = ("constant_loss", "flat_loss")
#: What happens at the time that a forecast names; elsewhere the headline itself says it.
_FORECAST_VERB = {
    "cost_over_budget": "used up",
    "time_over_budget": "over",
    "disk_forecast": "full",
}


def headline(finding: Finding, report: Report | None = None) -> str:
    """One sentence: the money it burns an hour where that is known, then what is wrong."""
    text = finding.summary or finding.code.replace("_", " ")
    rate = waste_per_hour(finding, report)
    if rate is not None and report is not None and rate >= LEAST_MONEY:
        return f"{money(rate, report.currency)}/h wasted: {text}"
    return text


def waste_per_hour(finding: Finding, report: Report | None) -> float | None:
    """Money an hour that a waste finding costs: its share of the time, times all charged GPUs, times the price."""
    ratio = finding.evidence.get(_WASTE_SHARE.get(finding.code, ""))
    if report is None or report.price is None or report.price.per_gpu_hour is None or not isinstance(ratio, (int, float)):
        return None
    return ratio * report.price.per_gpu_hour * report.charged_gpus


def forecast_text(finding: Finding, now_s: float) -> str | None:
    """`at about step 1,557 (1,370 - 1,729), in 12 min`, or in time where steps are not the driver."""
    forecast = finding.forecast_latest or finding.forecast
    if forecast is None:
        return None
    ahead = None if forecast.at_s is None else f"in {duration(max(0.0, forecast.at_s - now_s))}"
    interval = _interval(finding, now_s)
    if forecast.at_step is not None:
        text = f"at about step {count(forecast.at_step)}"
        return text + (f" ({interval})" if interval else "") + (f", {ahead}" if ahead else "")
    if ahead is None:
        return None
    return ahead + (f" ({interval})" if interval else "")


def advice_text(advice: Advice, currency: str | None) -> str:
    """`Try dataloader_num_workers=8 (now 4): saves up to 17 min and 0.42 USD of this run (costs host memory).`"""
    saving: dict[str, Any] = advice.saving
    parts = []
    if (saving.get("time_s") or 0.0) >= LEAST_SAVING_S:
        parts.append(_rough(saving["time_s"]))
    if (saving.get("cost") or 0.0) >= LEAST_MONEY:
        parts.append(money(saving["cost"], saving.get("currency") or currency))
    scope = "of this run" if saving.get("scope", "run") == "run" else "of the time so far"
    gain = f": saves up to {' and '.join(parts)} {scope}" if parts else ""
    side = f" (side effect: {saving['side_effect'].replace('; ', ', ')})" if saving.get("side_effect") else ""
    return f"Try {advice.setting}{gain}{side}."


def hint_text(finding: Finding) -> str | None:
    """The runbook's sentence for the finding's cause or phase, else its first one; None for a code without a record.

    Where causes have their own advice and none is for this one, the first sentence would only be in its way.
    """
    record = RECORDS.get(finding.code)
    if record is None:
        return None
    first = None
    own = {finding.cause, finding.phase, finding.evidence.get("what")} - {None}
    for sentence in _sentences(record.runbook):
        names, said = _named(sentence, {*record.causes, *_PHASES, *_WHATS})
        if own.intersection(names):
            return said[:1].upper() + said[1:] if re.match(r"[a-z]+[ ,:]", said) else said
        if not names and first is None:
            first = sentence
    return None if finding.cause and finding.advice else first


def finding_lines(finding: Finding, report: Report | None = None) -> list[str]:
    """The finding as log lines without their level; the code stands at the end of the last one."""
    sentences = [_first(finding, report)]
    hint = hint_text(finding)
    advice = [advice_text(a, report.currency if report is not None else None) for a in finding.advice[:2]]
    if hint is not None and (not advice or finding.severity is Severity.CRITICAL):
        sentences += [hint, *advice[:1]]  # what to do at once comes before what to change next time
    else:
        sentences += advice
    sentences[-1] += f"   [{finding.name}]"
    lines: list[str] = []
    for sentence in sentences:
        indent = _INDENT if lines else ""
        lines += textwrap.wrap(
            sentence,
            WIDTH,
            initial_indent=indent,
            subsequent_indent=_DEEPER,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return lines


def _first(finding: Finding, report: Report | None) -> str:
    """Where, the headline, and when it will happen unless the headline says so."""
    where = "" if finding.gpu is None or (report is not None and len(report.gpus) < 2) else f"GPU {finding.gpu}: "
    where += "" if finding.rank is None else f"rank {finding.rank}: "
    text = headline(finding, report)
    named = where.rstrip(": ").replace(": ", " ")
    if where and not re.search(rf"\b{re.escape(named)}\b", text):
        text = where + text
    finding = msgspec.structs.replace(finding, forecast_latest=None)  # a line of the raise says what was known then
    forecast = forecast_text(finding, finding.raised_s)
    if forecast is None:
        return text
    if _says_when(text):
        interval = _interval(finding, finding.raised_s)
        return text + (f"; 90 % interval {interval}" if interval else "")
    verb = _FORECAST_VERB.get(finding.code)
    return f"{text}: {verb} {forecast}" if verb is not None else f"{text}, {forecast}"


def _says_when(text: str) -> bool:
    return re.search(r"\bat step [\d,]+|\bin (about )?\d[\d.]* (ms|s|min|h|days)\b", text) is not None


def _interval(finding: Finding, now_s: float) -> str | None:
    """`1,370 - 1,729` or `19 s - 22 s`; None where both ends read the same."""
    forecast = finding.forecast_latest or finding.forecast
    if forecast is None or forecast.low is None or forecast.high is None:
        return None
    if forecast.at_step is not None:
        low, high = count(forecast.low), count(forecast.high)
        return None if low == high else f"{low} - {high}"
    low, high = (duration(max(0.0, at - now_s)) for at in (forecast.low, forecast.high))
    return None if low == high else f"{low} - {high}"


def _rough(seconds: float) -> str:
    """A bound in two digits: `48 s`, `4.5 min`, `1 h 20 min`."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if seconds < 570.0:
        return f"{seconds / 60.0:.1f}".removesuffix(".0") + " min"
    return duration(seconds)


def _sentences(text: str) -> list[str]:
    """A runbook's sentences; a list of causes before a colon begins one too."""
    return [s for s in re.split(r"(?<=[.!?])\s+(?=[A-Z`]|[a-z_]+(?:, [a-z_]+)*: )", text) if s]


def _named(sentence: str, words: set[str]) -> tuple[tuple[str, ...], str]:
    """The causes that a sentence is for (`storage, cold_cache: a local disk.`) and what it says; none = for all."""
    before, colon, said = sentence.partition(": ")
    names = tuple(before.split(", "))
    return (names, said) if colon and words.issuperset(names) else ((), sentence)
