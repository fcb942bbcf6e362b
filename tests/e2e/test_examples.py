"""Every example runs as it stands, is short, and leaves a record that replays."""

from __future__ import annotations

import json

import pytest

from e2e.processes import ROOT, command, run_of, trainbudget

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
#: Optimizer steps that each does.
STEPS = {"hf_minimal": 40, "lightning_minimal": 64, "plain_loop": 192}


def test_each_is_known_and_short():
    assert {path.stem for path in EXAMPLES} == STEPS.keys()
    assert all(len(path.read_text().splitlines()) < 40 for path in EXAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_it_runs_and_is_recorded(example, tmp_path):
    done = command(str(example), cwd=tmp_path, TRAINBUDGET_LISTEN="off", TRAINBUDGET_BACKEND="mock:healthy")
    assert done.code == 0, done.err
    assert "where the GPU time went" in done.err
    replay = trainbudget("replay", str(run_of(tmp_path)), "--json", cwd=tmp_path)
    summary = json.loads(replay.out)["summary"]
    assert (summary["steps"], summary["outcome"]) == (STEPS[example.stem], "finished")
    assert summary["cost"] > 0.0
