"""Runs promtool on rules and test cases written to a folder."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from trainbudget.render import rules

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian: prometheus) is not installed")


def write_rules(folder: Path) -> list[Path]:
    """The three rule files as they are rendered now."""
    texts = {
        "thresholds.yaml": rules.thresholds_yaml(),
        "recording.yaml": rules.recording_yaml(),
        "alerts.yaml": rules.alerts_yaml(),
    }
    out = []
    for name, text in texts.items():
        path = folder / name
        path.write_text(text, encoding="utf-8")
        out.append(path)
    return out


def input_series(series: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"series": name, "values": values} for name, values in series.items()]


def run_cases(folder: Path, cases: list[dict[str, Any]], rule_files: list[Path] | None = None) -> str:
    """promtool's answer to test cases; raises AssertionError with its words when one fails."""
    names = [path.name for path in rule_files or write_rules(folder)]
    document = {
        "rule_files": names,
        "evaluation_interval": "1m",
        "group_eval_order": ["trainbudget-thresholds", "trainbudget-recording", "trainbudget-alerts"],
        "tests": cases,
    }
    path = folder / "cases.yaml"
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")  # JSON is YAML
    done = subprocess.run(["promtool", "test", "rules", str(path)], check=False, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-6000:]
    return done.stdout


def firing(name: str, at: str, *, labels: list[str] | None = None) -> dict[str, Any]:
    """A query for whether an alert fires; `labels` None = it must not."""
    samples = [{"labels": text, "value": 1} for text in labels or []]
    return {"expr": f'ALERTS{{alertname="{name}",alertstate="firing"}}', "eval_time": at, "exp_samples": samples}
