"""Recorded field traces of the memory family, where they are at hand: expected findings come, controls stay silent."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from trainbudget.engine.detect.memory import DETECTORS
from trainbudget.engine.engine import Engine
from trainbudget.findings import Finding, Severity
from trainbudget.trace import read_trace

FOLDER = Path(os.environ.get("TRAINBUDGET_FIELD_TRACES") or Path(__file__).resolve().parents[4] / "shared" / "field" / "traces")
CODES = {d.record.code for d in DETECTORS}


def entries() -> list[dict[str, Any]]:
    path = FOLDER / "expected.json"
    if not path.exists():
        return []
    known = json.loads(path.read_text())
    return [
        e
        for e in known
        if e["id"].startswith("H") or any(set(_list(m["code"])) & CODES for m in e["must"]) or e["id"] in CONTROLS
    ]


CONTROLS = {"A24", "A26", "A28", "A49", "A56", "B01", "B11", "B19"}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def satisfies(finding: Finding, wanted: dict[str, Any]) -> bool:
    forecast = finding.forecast
    spans = {"forecast_step_between": "at_step", "forecast_s_between": "at_s"}
    known = {span: getattr(forecast, name) if forecast is not None else None for span, name in spans.items() if span in wanted}
    return (
        finding.code in _list(wanted["code"])
        and ("cause" not in wanted or finding.cause in _list(wanted["cause"]))
        and finding.raised_s >= wanted.get("raised_after_s", -1.0)
        and finding.raised_s <= wanted.get("raised_before_s", float("inf"))
        and finding.severity.level >= Severity(wanted.get("severity_min", "info")).level
        and (not known or any(v is not None for v in known.values()))
        and all(v is None or wanted[span][0] <= v <= wanted[span][1] for span, v in known.items())
    )


@pytest.mark.skipif(not entries(), reason="no field traces at hand (TRAINBUDGET_FIELD_TRACES)")
@pytest.mark.slow
@pytest.mark.parametrize("entry", entries(), ids=lambda e: e["trace"].split(".")[0])
def test_field_trace(entry):
    engine = Engine(detectors=DETECTORS)
    for event in read_trace(FOLDER / entry["trace"]):
        engine.feed(event)
    for wanted in entry["must"]:
        if set(_list(wanted["code"])) & CODES:
            assert any(satisfies(f, wanted) for f in engine.findings), (wanted, [f.name for f in engine.findings])
    allowed = set(entry.get("may", ())) | {c for m in entry["must"] for c in _list(m["code"])}
    for finding in engine.findings:
        forbidden = finding.code in entry["must_not"] or ("*" in entry["must_not"] and finding.code not in allowed)
        assert finding.severity is Severity.INFO or not forbidden, finding
