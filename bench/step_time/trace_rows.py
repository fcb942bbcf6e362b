"""Traces the operators of every published row (two and three layers, extended to all: operators are linear in layers) into
`operators.json`. Run: `python bench/step_time/trace_rows.py`; a minute or two."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from mpt import SIZES, Mpt

from trainbudget.plan.memory import TargetGpu, TrainSpec, trace_step

HERE = Path(__file__).parent


def operators(model: str, length: int, batch: int, recompute: bool, layers: int) -> dict[tuple, int]:
    trace = trace_step(
        model=lambda: Mpt(model, length, layers, recompute).to(torch.bfloat16),
        batches=[torch.zeros(batch, length, dtype=torch.long)],
        training_step=lambda net, ids: net(ids),
        optimizer_factory=lambda params: torch.optim.AdamW(params, foreach=True),
        target=TargetGpu(),
        spec=TrainSpec(micro_batch=batch, sequence_length=length, precision="bf16_pure", max_grad_norm=None),
        vocabulary=50368,
    )
    return {(o.name, o.kind, o.phase, o.dtype, o.flops, o.bytes): o.count for o in trace.operators if o.phase != 3}


def main() -> None:
    found = {}
    with (HERE / "mpt_rows.csv").open() as file:
        shapes = sorted(
            {(r["model"], int(r["seq"]), int(r["micro_batch"]), r["checkpointing"] == "True") for r in csv.DictReader(file)}
        )
    for model, length, batch, recompute in shapes:
        two, three = (operators(model, length, batch, recompute, n) for n in (2, 3))
        layers = SIZES[model][2]
        whole = [[*key, two.get(key, 0) + (three.get(key, 0) - two.get(key, 0)) * (layers - 2)] for key in sorted({*two, *three})]
        found[f"{model}/{length}/{batch}/{int(recompute)}"] = [o for o in whole if o[-1] > 0]
    lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in found.items())
    (HERE / "operators.json").write_text("{\n" + lines + "\n}\n")
    print(len(found), "shapes")


if __name__ == "__main__":
    main()
