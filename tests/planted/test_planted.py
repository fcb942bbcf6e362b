"""Runs that were recorded with a fault that their script really committed: the diagnosis names it and nothing else.

`expected.json`: name -> `must` (findings), `may` (codes that may come too, each a consequence of the fault), `ledger`
(bucket -> bounds of its share of all seconds), `outcome`. Nothing else may come at warning or above.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from planted.record import DATA, MODULES, record
from trainbudget.engine.report import Report
from trainbudget.findings import Finding, Severity
from trainbudget.live.pipeline import replay
from trainbudget.trace import TraceReader

EXPECTED: dict[str, dict[str, Any]] = json.loads((DATA / "expected.json").read_text())
#: Quick ones that are really run again: one of each framework.
LIVE = ("loop_host_out_of_memory", "huggingface_resumed", "lightning_diverging")


@functools.cache
def diagnosed(path: Path) -> Report:
    return replay(TraceReader(path))


def is_meant(finding: Finding, wanted: Mapping[str, Any]) -> bool:
    """Whether a finding is what is wanted, at the severity, time, cause and with the evidence that are asked for."""
    forecast, between = finding.forecast, wanted.get("forecast_s_between")
    return (
        finding.code == wanted["code"]
        and ("cause" not in wanted or finding.cause in wanted["cause"])
        and finding.severity is Severity(wanted["severity"])
        and finding.raised_s >= wanted.get("raised_after_s", 0.0)
        and wanted.get("evidence", {}).items() <= finding.evidence.items()
        and (between is None or (forecast is not None and between[0] <= (forecast.at_s or -1.0) <= between[1]))
    )


def assert_right(name: str, report: Report) -> None:
    expected = EXPECTED[name]
    told = [f"{f.severity.value} {f.name} at {f.raised_s:.0f} s: {f.summary} {f.evidence}" for f in report.findings]
    for wanted in expected["must"]:
        assert any(is_meant(f, wanted) for f in report.findings), (wanted, told)
        assert sum(f.code == wanted["code"] for f in report.findings) <= wanted.get("max_count", 1), told
    allowed = {w["code"] for w in expected["must"]} | set(expected["may"])
    loud = [f.name for f in report.findings if f.severity.level >= Severity.WARNING.level and f.code not in allowed]
    assert not loud, told
    for bucket, (low, high) in expected.get("ledger", {}).items():
        assert low <= report.ledger[bucket].ratio <= high, (bucket, report.ledger[bucket])
    assert sum(line.gpu_seconds for line in report.ledger.values()) == pytest.approx(report.gpu_seconds, abs=1e-6)
    assert report.outcome == expected.get("outcome", "finished")
    assert report.header.framework == expected["framework"]
    assert report.header.backend == "none"


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_recorded_run_is_diagnosed_right(name):
    assert_right(name, diagnosed(DATA / f"{name}.jsonl.gz"))


def test_every_trace_is_expected_and_every_framework_has_a_healthy_run():
    assert {p.name.removesuffix(".jsonl.gz") for p in DATA.glob("*.jsonl.gz")} == set(EXPECTED)
    assert {e["framework"] for n, e in EXPECTED.items() if n.endswith("_healthy")} == set(MODULES)
    assert sum(bool(e["must"]) for e in EXPECTED.values()) >= 12


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", LIVE)
def test_the_same_run_today_is_diagnosed_right(name, tmp_path):
    pytest.importorskip({"loop": "torch", "huggingface": "transformers", "lightning": "lightning"}[name.split("_", 1)[0]])
    assert_right(name, diagnosed(record(name, tmp_path)))
