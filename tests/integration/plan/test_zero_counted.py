"""Replays of ZeRO 1, 2 and 3 against bytes counted on real DeepSpeed ranks over gloo.

The ranks do not run here: DeepSpeed is not among the development dependencies, because accelerate, transformers and Lightning
see it and behave differently once it is installed. ``zero_counted.json`` holds what ``bench/prediction/zero_ranks.py`` counted
on real ranks, with the versions; that script counts again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from integration.plan.replayed_net import TOLERANCE_BYTES, different, replayed
from trainbudget.plan.simulated_device import backend

COUNTED = json.loads(Path(__file__).with_name("zero_counted.json").read_text())

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not backend.available(), reason="this torch cannot register a device from Python"),
]


@pytest.mark.parametrize("row", COUNTED["rows"], ids=lambda row: row["name"])
def test_the_replay_equals_the_counted_bytes(row: dict[str, Any]) -> None:
    options = {**row["options"], "fused_adam": False}  # the ranks stepped torch's AdamW
    found = replayed(f"zero{row['stage']}", row["precision"], row["micro_steps"], row["world"], options)
    assert different(found, row, TOLERANCE_BYTES[row["precision"]]) == {}


def test_every_stage_and_both_precisions_were_counted() -> None:
    counted = {(row["stage"], row["precision"], row["micro_steps"]) for row in COUNTED["rows"]}
    assert counted == {(stage, precision, micro) for stage in (1, 2, 3) for precision in ("fp32", "bf16") for micro in (1, 3)}
    assert {row["world"] for row in COUNTED["rows"]} == {2, 4}
