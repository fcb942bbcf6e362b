"""Every finding as it is printed at two in the morning: one line what is wrong, one what to do, the code last."""

from __future__ import annotations

import functools
import importlib
import re
from pathlib import Path

import msgspec
import pytest

from trainbudget.engine.report import Report
from trainbudget.events import Header
from trainbudget.findings import Advice, Finding, Forecast, Severity
from trainbudget.live.pipeline import replay
from trainbudget.wording.closing import closing_table
from trainbudget.wording.finding import WIDTH, advice_text, finding_lines, headline, hint_text

FRAMEWORKS = ("huggingface", "lightning", "loop")
FAMILIES = sorted(p.stem for p in (Path(__file__).parent.parent / "engine" / "minimal").glob("*.py"))
TRACES = [(f, name) for f in FAMILIES for name in importlib.import_module(f"unit.engine.minimal.{f}").MINIMAL]


@functools.cache
def report_of(family: str, name: str, framework: str) -> Report:
    events = importlib.import_module(f"unit.engine.minimal.{family}").MINIMAL[name]()
    told = (msgspec.structs.replace(e, framework=framework) if isinstance(e, Header) else e for e in events)
    return replay(told)


def wrong_with(text: str) -> list[str]:
    """What nobody should have to read."""
    signs = {
        "doubled spaces": r"\S  +\S",
        "None": r"(?<!\()\bNone\b",
        "an unrounded number": r"\d\.\d{5,}|\de[+-]\d",
        "a per cent sign without its space": r"\d%",
        "a wrong plural": r"\b1 [a-z-]*errors\b|\bone [a-z]+s\b",
        "a placeholder": r"[{}]\w+[{}]|\bnan\b",
        "an empty bracket": r"\s\(\s*\)",
        "doubled punctuation": r"\.\.(?!\.)(?<!\.\.\.)$|,,|;;|\. *\.$",
    }
    return [name for name, pattern in signs.items() if re.search(pattern, text)]


@pytest.mark.parametrize(("family", "name"), TRACES, ids=[n for _, n in TRACES])
def test_each_finding_reads_well(family, name):
    for framework in FRAMEWORKS:
        report = report_of(family, name, framework)
        assert report.findings or (name, framework) == ("unsaved_work", "loop")  # whose saves are not seen
        for finding in report.findings:
            first = headline(finding, report)
            assert len(first) <= WIDTH, first
            assert not wrong_with(first), first
            lines = finding_lines(finding, report)
            assert lines[-1].endswith(f"[{finding.name}]")
            assert len(lines) > 1, "a finding that says what is wrong and not what to do"
            assert not lines[0].startswith(" ")
            for line in lines:
                assert len(line) <= WIDTH or " " not in line.strip(), line
            text = " ".join(line.strip() for line in lines).removesuffix(f"   [{finding.name}]").removesuffix(f"[{finding.name}]")
            assert not wrong_with(text.rstrip()), text
        assert not [line for line in closing_table(report).splitlines() if len(line) > 130]


def found(code: str, severity: Severity = Severity.WARNING, **more: object) -> Finding:
    return Finding(code=code, severity=severity, raised_s=100.0, summary="something is wrong", **more)  # type: ignore[arg-type]


def test_a_lost_gpu_is_not_told_to_end_the_process_when_training_is_over():
    lines = finding_lines(report_of("stuck", "gpu_lost", "huggingface").findings[0])
    assert lines[1].strip().startswith("Drain the node")
    assert "training is over" not in " ".join(lines)


def test_what_to_do_at_once_comes_before_what_to_change_next_time():
    advice = (Advice(lever="x", setting="a=1"), Advice(lever="y", setting="b=2"))
    critical = finding_lines(found("oom_forecast", Severity.CRITICAL, advice=advice))
    assert [line.split()[0] for line in critical[1:]] == ["Save", "Try"]
    warned = finding_lines(found("oom_forecast", advice=advice))
    assert [line.strip().split()[1][0] for line in warned[1:]] == ["a", "b"]


def test_the_runbook_speaks_of_the_cause():
    assert (hint_text(found("input_bound", cause="storage")) or "").startswith("A local disk")
    assert (hint_text(found("oom", cause="sibling_ranks")) or "").startswith("Set each rank's device")
    assert hint_text(found("oom", cause="true_capacity", advice=(Advice(lever="x", setting="a=1"),))) is None
    assert (hint_text(found("oom_next_phase", phase="eval")) or "").startswith("Use a smaller evaluation batch")
    assert hint_text(found("no_such_code")) is None


def test_savings_that_nobody_would_notice_are_not_told():
    small = Advice(lever="x", setting="a=1", saving={"time_s": 0.05, "cost": 0.00003, "currency": "USD"})
    assert advice_text(small, "USD") == "Try a=1."
    large = Advice(
        lever="x",
        setting="a=1",
        saving={"time_s": 1020.0, "cost": 0.42, "currency": "USD", "scope": "run", "side_effect": "b; c"},
    )
    assert advice_text(large, None) == "Try a=1: saves up to 17 min and 0.42 USD of this run (side effect: b, c)."


def test_a_forecast_is_said_once():
    finding = msgspec.structs.replace(
        found("oom_forecast", forecast=Forecast(at_s=220.0, at_step=251.0, low=249.0, high=253.0)),
        summary="out of memory in about 2 min 00 s, at step 251",
    )
    assert finding_lines(finding)[0] == "out of memory in about 2 min 00 s, at step 251; 90 % interval 249 - 253"
    silent = msgspec.structs.replace(finding, code="disk_forecast", summary="2 more saves fit on the disk")
    assert finding_lines(silent)[0] == "2 more saves fit on the disk: full at about step 251 (249 - 253), in 2 min 00 s"


def test_money_comes_first_and_is_the_finding_s_own_share():
    report = report_of("waiting", "launch_bound", "loop")
    finding = next(f for f in report.findings if f.code == "launch_bound")
    assert report.price is not None
    expected = finding.evidence["idle_ratio"] * report.price.per_gpu_hour * report.charged_gpus
    assert headline(finding, report).startswith(f"{expected:.2f} {report.currency}/h wasted: ")
