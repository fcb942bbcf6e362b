"""`trainbudget demo`: a real training with everything on, and a record that says the same again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from e2e.processes import trainbudget

pytestmark = pytest.mark.slow

#: A demo of this many steps shows its findings; the full one is timed by `make demo`.
STEPS = "80"


@pytest.mark.parametrize("framework", ["huggingface", "lightning", "loop"])
def test_the_demo_tells_one_json_value_and_its_record_replays_equal(tmp_path, framework):
    done = trainbudget("demo", "--framework", framework, "--steps", STEPS, "--json", cwd=tmp_path)
    assert done.code == 0, done.err
    value = json.loads(done.out)
    assert value.keys() == {"run_dir", "findings", "ledger", "summary"}
    assert value["summary"]["outcome"] == "finished"
    assert value["summary"]["steps"] == int(STEPS)
    assert value["summary"]["framework"] == framework
    assert value["summary"]["backend"] == "mock"
    assert "simulated" in done.err
    assert "monitoring fault" not in done.err
    ledger = value["ledger"]
    assert ledger["data_wait"]["gpu_seconds"] > 1.0  # the demo's loader is slow on purpose
    assert sum(line["gpu_seconds"] for line in ledger.values()) == pytest.approx(value["summary"]["gpu_seconds"])
    again = json.loads(trainbudget("replay", value["run_dir"], "--json", cwd=tmp_path).out)
    assert again["findings"] == value["findings"]
    assert again["ledger"] == ledger
    assert again["summary"] == {k: v for k, v in value["summary"].items() if k not in ("findings", "ledger")}
    written = json.loads((Path(value["run_dir"]) / "summary.json").read_text())
    assert written["ledger"] == ledger


def test_for_people_it_prints_budget_findings_ledger_and_what_next(tmp_path):
    done = trainbudget("demo", "--framework", "loop", "--steps", STEPS, "--scenario", "leak", cwd=tmp_path)
    assert done.code == 0, done.err
    for word in ("budget", "simulated A100-80GB, scenario 'leak'", "record", "trainbudget replay", "next"):
        assert word in done.out
    assert "where the GPU time went" in done.err
    assert "Traceback" not in done.out + done.err
