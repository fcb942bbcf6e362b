"""Step time against published throughputs: fit per card, leave one out, leave one card out, cold rows. `--write` updates the table.

Not blind: the interval widths, `EXPOSED` and the lower end of the memory grid were chosen after seeing these rows. No number was
fitted to runs above 8 GPUs, but how nodes are linked was chosen among three models with them in view.

    python bench/step_time/run.py [--write]

Rows: `mpt_rows.csv` (MosaicML llm-foundry, scripts/train/benchmarking/README.md, commit 495218376 of 2024-04-22; bf16, at most 8 GPUs
are fitted, larger runs are only reported), `cold_rows.json` (other frameworks and cards, never fitted).
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from trainbudget.plan.hardware import require_gpu
from trainbudget.plan.step_time import _FREE, EXPOSED, KERNEL_FLOOR_S, Calibration, estimate_step_time, link_bytes_per_s
from trainbudget.plan.tracing.trace import OperatorCost, Parameter, Phase, Trace
from trainbudget.plan.train_spec import TrainSpec

HERE = Path(__file__).parent
TABLE = HERE.parents[1] / "src/trainbudget/plan/data/calibration.json"
CARDS = {"a100_80gb": "A100-80GB", "a100_40gb": "A100-40GB", "h100_80gb": "H100"}
#: Fractions of peak tried: products 44-98 %, attention 10-58 %, memory 60-90 %, what streaming kernels reach (lower would only absorb
#: what these runs do beside the traced operators, and would not transfer to other models).
GRID = list(itertools.product(np.arange(0.44, 1.0, 0.03), np.arange(0.10, 0.6, 0.03), (0.6, 0.65, 0.7, 0.8, 0.9)))


@dataclass
class Row:
    name: str
    gpu: str
    gpus: int
    published_s: float  # of one optimizer step
    trace: Trace
    spec: TrainSpec


def mpt_rows() -> list[Row]:
    operators = json.loads((HERE / "operators.json").read_text())
    rows = []
    with (HERE / "mpt_rows.csv").open() as file:
        for r in csv.DictReader(file):
            if "fp8" in r["precision"] or r["gpu"] not in CARDS:
                continue
            batch, length, accumulation, gpus = int(r["micro_batch"]), int(r["seq"]), int(r["grad_accum"]), int(r["gpus"])
            parameters, recompute = int(r["params"]), r["checkpointing"] == "True"
            costs = [
                OperatorCost(name=n, kind=k, phase=p, dtype=d, flops=f, bytes=b, count=c)
                for n, k, p, d, f, b, c in operators[f"{r['model']}/{length}/{batch}/{int(recompute)}"]
            ]
            # AdamW on fp32 shards: parameter and two moments read and written, gradient read.
            costs.append(
                OperatorCost(
                    name="adamw", kind="memory", phase=Phase.OPTIMIZER, dtype="float32", flops=0, bytes=28 * parameters, count=1
                )
            )
            spec = TrainSpec(
                micro_batch=batch, sequence_length=length, gradient_accumulation=accumulation, precision="bf16_pure", strategy="fsdp",
                world_size=gpus, activation_checkpointing="non_reentrant" if recompute else None,
            )  # fmt: skip
            trace = Trace(
                events=[],
                parameters=[Parameter(name="all", shape=(parameters,), elements=parameters, item_bytes=2, trainable=True)],
                operators=costs,
                spec=spec,
            )
            name = f"{r['model']} {length} b{batch}x{accumulation}{' ckpt' if recompute else ''} {gpus}x"
            rows.append(
                Row(name, CARDS[r["gpu"]], gpus, batch * length * accumulation / float(r["tokens_per_s_per_gpu"]), trace, spec)
            )
    return rows


def fast(row: Row) -> tuple:
    """Arrays for the grid: kind, phase, seconds at full arithmetic and memory rate, counts, communication."""
    gpu, o = require_gpu(row.gpu), [x for x in row.trace.operators if x.name not in _FREE]
    kind = np.array([{"memory": 0, "attention": 2}.get(x.kind, 1) for x in o])
    optimizer = np.array([x.phase == Phase.OPTIMIZER for x in o])
    count = np.array([x.count for x in o], float)
    times = np.where(optimizer, 1.0 / row.gpus, float(row.spec.gradient_accumulation)) * count
    compute = np.array([x.flops for x in o]) / gpu.peak("bf16")
    memory = np.array([x.bytes for x in o]) / gpu.bandwidth_bytes_per_s
    wire = (
        3 * 2 * row.trace.parameter_elements * (row.gpus - 1) / row.gpus / link_bytes_per_s(gpu, row.gpus)
        if row.gpus > 1
        else 0.0
    )
    return kind, times, compute, memory, EXPOSED * wire * row.spec.gradient_accumulation


def predict_fast(arrays: tuple, matmul: float, attention: float, memory: float) -> float:
    kind, times, compute, traffic, wire = arrays
    arithmetic = np.where(kind == 2, compute / attention, np.where(kind == 1, compute / matmul, 0.0))
    return float((np.maximum(np.maximum(arithmetic, traffic / memory), KERNEL_FLOOR_S) * times).sum() + wire)


def fit(rows: list[Row]) -> tuple[np.ndarray, np.ndarray]:
    """log(predicted / published) for every grid point and row, and its total absolute value for each grid point."""
    arrays = [fast(r) for r in rows]
    errors = np.array(
        [[np.log(predict_fast(a, *point) / r.published_s) for a, r in zip(arrays, rows, strict=True)] for point in GRID]
    )
    return errors, np.abs(errors).sum(1)


def summary(errors: np.ndarray) -> str:
    e = np.abs(np.expm1(errors)) * 100
    return f"median {np.median(e):.1f} %  mean {e.mean():.1f} %  p90 {np.quantile(e, 0.9):.1f} %  worst {e.max():.1f} %"


def calibration(point: tuple, low: float = 1.0, high: float = 1.0) -> Calibration:
    return Calibration(matmul=point[0], attention=point[1], memory=point[2], low=low, high=high, source="bench", own=True)


def cold_rows() -> list[Row]:
    from trainbudget.plan.memory import TargetGpu, trace_config

    rows = []
    for r in json.loads((HERE / "cold_rows.json").read_text()):
        gpu = require_gpu(r["gpu"])
        spec = TrainSpec(**r["spec"])
        target = TargetGpu(
            name=gpu.nvml_names[0], memory_bytes=int(gpu.nvml_total_bytes), compute_capability=gpu.compute_capability
        )
        trace = trace_config(r["config"], spec, target)
        name = r["id"] + (" (not comparable)" if "not_comparable" in r else "")
        rows.append(Row(name, r["gpu"], spec.world_size, r["published_step_s"], trace, spec))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true", help="write data/calibration.json")
    parser.add_argument("--rows", action="store_true", help="print every row")
    parser.add_argument("--no-cold", action="store_true", help="skip the rows that need transformers")
    options = parser.parse_args()
    rows = mpt_rows()
    fitted, best = {}, {}
    for gpu in CARDS.values():
        mine = [r for r in rows if r.gpu == gpu and r.gpus <= 8]
        errors, total = fit(mine)
        best[gpu] = tuple(float(round(v, 2)) for v in GRID[int(np.argmin(total))])
        left_out = np.array([errors[int(np.argmin(total - np.abs(errors[:, i]))), i] for i in range(len(mine))])
        fitted[gpu] = (mine, left_out)
        exact = [
            np.log(
                estimate_step_time(r.trace, require_gpu(gpu), r.spec, calibration=calibration(best[gpu])).step.value
                / r.published_s
            )
            for r in mine
        ]
        print(
            f"{gpu}: {len(mine)} rows, products {best[gpu][0]:.2f} attention {best[gpu][1]:.2f} memory {best[gpu][2]:.2f} of peak"
        )
        print(f"  leave one out   {summary(left_out)}")
        print(f"  product code    {summary(np.array(exact))}")
        large = [r for r in rows if r.gpu == gpu and r.gpus > 8]
        if large:
            far = [
                np.log(
                    estimate_step_time(r.trace, require_gpu(gpu), r.spec, calibration=calibration(best[gpu])).step.value
                    / r.published_s
                )
                for r in large
            ]
            print(f"  above 8 GPUs    {summary(np.array(far))}  ({len(large)} rows, not fitted)")
        if options.rows:
            for r, e in zip(mine, exact, strict=True):
                print(f"    {r.name:28s} {100 * np.expm1(e):+6.1f} %")
    crossed = []
    for gpu, (mine, _) in fitted.items():
        others = [best[g] for g in best if g != gpu]
        point = tuple(median(p[i] for p in others) for i in range(3))
        errors = np.array([np.log(predict_fast(fast(r), *point) / r.published_s) for r in mine])
        crossed.extend(errors)
        print(
            f"{gpu} from the other cards: {summary(errors)}  (published / predicted {np.exp(-errors).min():.2f} - {np.exp(-errors).max():.2f})"
        )
    table = calibration_table(fitted, best)
    if options.write:
        TABLE.write_text(json.dumps(table, indent=1) + "\n")
    low, high = table["default"]["low"], table["default"]["high"]
    inside = [low <= np.exp(-e) <= high for e in crossed]
    print(f"default interval {low:.2f} - {high:.2f}: covers {sum(inside)} of {len(inside)} rows of cards it was not fitted on")
    for gpu, (mine, left_out) in fitted.items():
        card = next(c for c in table["cards"] if c["gpu"] == gpu)
        covered = sum(card["low"] <= np.exp(-e) <= card["high"] for e in left_out)
        print(f"{gpu} interval {card['low']:.2f} - {card['high']:.2f}: covers {covered} of {len(mine)} rows left out")
    if not options.no_cold:
        report_cold()


#: Published over predicted, 90 %. A calibrated card: the runs fitted are a tuned stack, an ordinary Trainer run is slower, hardly faster.
OWN_INTERVAL = (0.80, 1.50)
#: A card that was never calibrated: 0.75 - 1.35 between the three cards fitted here, and the ordinary run's slowness on top.
DEFAULT_INTERVAL = (0.65, 1.80)


def calibration_table(fitted: dict, best: dict) -> dict:
    cards = [
        {"gpu": gpu, "precisions": ["bf16", "fp16"], "matmul": best[gpu][0], "attention": best[gpu][1], "memory": best[gpu][2], "low": OWN_INTERVAL[0],
         "high": OWN_INTERVAL[1], "rows": len(mine)} for gpu, (mine, _) in fitted.items()
    ]  # fmt: skip
    middle = {k: median(c[k] for c in cards) for k in ("matmul", "attention", "memory")}
    default = {
        "gpu": "",
        "precisions": [],
        **middle,
        "low": DEFAULT_INTERVAL[0],
        "high": DEFAULT_INTERVAL[1],
        "rows": sum(c["rows"] for c in cards),
    }
    return {
        "source": "bench/step_time/run.py --write; rows of MosaicML llm-foundry 495218376 (2024-04-22)",
        "cards": cards,
        "default": default,
    }


def report_cold() -> None:
    rows = cold_rows()
    hits = 0
    print("cold rows: other frameworks and cards, nothing fitted, product code with its own interval")
    for r in rows:
        step = estimate_step_time(r.trace, require_gpu(r.gpu), r.spec).step
        hit = step.low <= r.published_s <= step.high
        hits += hit and "not comparable" not in r.name
        print(f"  {r.name:60s} {r.gpu:10s} published {r.published_s:7.3f} s  predicted {step.value:7.3f} ({step.low:.3f} - {step.high:.3f})"
              f"  {100 * (step.value / r.published_s - 1):+6.1f} % {'inside' if hit else 'OUTSIDE'}")  # fmt: skip
    comparable = sum("not comparable" not in r.name for r in rows)
    print(
        f"  inside: {hits} of {comparable} comparable rows; the others run torch.compile, which is not modelled (reasons in cold_rows.json)"
    )


if __name__ == "__main__":
    main()
