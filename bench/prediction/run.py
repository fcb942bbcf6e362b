"""Predict published memory peaks and compare: ``python bench/prediction/run.py --litgpt CLONE --peft CLONE``.

Rows (``rows.json``) carry their public source. A row that needs a project's own code is run from a clone of that project and
left out, with a word, when there is none. Each row is traced in a process of its own; nothing of this touches a GPU or the
network.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
UNITS = {"MiB": 2**20, "GiB": 2**30, "GB": 1e9}
GOALS = {
    "full": (1.5, 3, 5),
    "lora": (1.5, 3, 5),
    "qlora": (3, 6, 9),
    "sharded": (3, 6, 10),
    "unpublished_length": (None, None, 6),
}


def predict_row(row: dict[str, Any], clones: dict[str, str | None]) -> dict[str, Any]:
    """Prediction of one row; run in the child process."""
    from trainbudget.plan.memory import TargetGpu, TrainSpec, predict_memory, trace_config

    started = time.monotonic()
    target = TargetGpu(**{**row["target"], "compute_capability": tuple(row["target"]["compute_capability"])})
    if row["runner"] == "litgpt":
        from litgpt_loop import trace_row

        trace = trace_row(row, Path(str(clones["litgpt"])), target)
    elif row["runner"] == "peft":
        from peft_loop import trace_row as trace_peft

        trace = trace_peft(row, Path(str(clones["peft"])), target)
    else:
        import contextlib

        from old_softmax import softmax_keeps_input

        old = "softmax keeps its input" in row.get("stack", "")
        with softmax_keeps_input() if old else contextlib.nullcontext():
            trace = trace_config(row["config"], TrainSpec(**row["spec"]), target)
    context = int(row["context_mib"] * 2**20) if "context_mib" in row else None
    prediction = predict_memory(trace, target, context_bytes=context)
    interval = getattr(prediction, row["measured"])
    return {
        "value": interval.value,
        "low": interval.low,
        "high": interval.high,
        "fits": prediction.fits,
        "phase": prediction.peak_phase,
        "categories": prediction.categories,
        "not_understood": prediction.not_understood,
        "seconds": time.monotonic() - started,
    }


def run_row(row: dict[str, Any], clones: dict[str, str | None]) -> dict[str, Any]:
    """The row with its prediction, or why there is none.

    A row whose shapes are not all published lists ``alternatives``: the first is the assumption that is predicted, the others
    are the bounds of what is possible, and the interval spans them all.
    """
    if not row.get("alternatives"):
        return _run_one(row, clones)
    results = [_run_one(_merged(row, change), clones) for change in row["alternatives"]]
    found = [r["prediction"] for r in results if "prediction" in r]
    if len(found) < len(results):
        return next(r for r in results if "prediction" not in r)
    spanned = {**found[0], "low": min(p["low"] for p in found), "high": max(p["high"] for p in found)}
    return {**row, "prediction": spanned}


def _merged(row: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    return {**row, **{key: {**row[key], **value} for key, value in change.items()}}


def _run_one(row: dict[str, Any], clones: dict[str, str | None]) -> dict[str, Any]:
    if row.get("not_run"):
        return {**row, "left_out": row["not_run"]}
    if row["runner"] in clones and clones[row["runner"]] is None:
        return {**row, "left_out": f"needs a clone of {row['runner']}: --{row['runner']}"}
    command = [sys.executable, str(HERE / "run.py"), "--child", json.dumps([row, clones])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900, cwd=HERE)
    if done.returncode:
        last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "")
        return {**row, "failed": last[:300]}
    return {**row, "prediction": json.loads(done.stdout.splitlines()[-1])}


def judged(row: dict[str, Any]) -> dict[str, Any]:
    """The row with error and interval hit; an out-of-memory row is judged by its verdict."""
    prediction = row.get("prediction")
    if prediction is None:
        return row
    if row["published"] in (None, "OOM"):
        return {**row, "out_of_memory": True, "right": prediction["fits"] is not True}
    published = row["published"] * UNITS[row["unit"].split()[0]]
    return {
        **row,
        "error_percent": 100 * (prediction["value"] / published - 1),
        "hit": prediction["low"] <= published <= prediction["high"],
    }


def line_of(row: dict[str, Any]) -> str:
    """One printed line."""
    head = f"{row['id'][:62]:62s}"
    if "left_out" in row:
        return f"{head} not run: {row['left_out']}"
    if "failed" in row:
        return f"{head} FAILED: {row['failed']}"
    prediction, scale = row["prediction"], UNITS[str(row["unit"]).split()[0]]
    numbers = f"{prediction['value'] / scale:9.2f} [{prediction['low'] / scale:.2f}, {prediction['high'] / scale:.2f}]"
    if row.get("out_of_memory"):
        return f"{head} {numbers} published OOM, fits={prediction['fits']} {'right' if row['right'] else 'WRONG'}"
    verdict = "in" if row["hit"] else "OUT"
    return (
        f"{head} {numbers} published {row['published']:9.2f} {row['unit'].split()[0]:3s} {row['error_percent']:+6.2f} % {verdict:3s} "
        f"{prediction['phase']:9s} {prediction['seconds']:5.1f} s"
    )


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Median, 90th percentile and worst absolute error and interval coverage of each class, beside its goal."""
    found = []
    for name in [*GOALS, "all"]:
        members = [r for r in rows if "error_percent" in r and name in (r["class"], "all")]
        if not members:
            continue
        errors = sorted(abs(r["error_percent"]) for r in members)
        found.append(
            {
                "class": name,
                "rows": len(members),
                "median": statistics.median(errors),
                "p90": errors[min(len(errors) - 1, round(0.9 * (len(errors) - 1)))],
                "worst": errors[-1],
                "interval_hits": sum(r["hit"] for r in members) / len(members),
                "goal": GOALS.get(name),
            }
        )
    return found


def main() -> int:
    """Exit code 0; 1 when a row failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=Path, default=HERE / "rows.json")
    parser.add_argument("--only", default="", help="run rows whose id contains this text")
    parser.add_argument("--class", dest="kind", default="", help="run rows of this class")
    parser.add_argument("--litgpt", help="clone of Lightning-AI/litgpt")
    parser.add_argument("--peft", help="clone of huggingface/peft")
    parser.add_argument("--json", type=Path, help="write all results here")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        row, clones = json.loads(arguments.child)
        print(json.dumps(predict_row(row, clones)))
        return 0
    clones = {"litgpt": arguments.litgpt, "peft": arguments.peft}
    rows = [
        r
        for r in json.loads(arguments.rows.read_text(encoding="utf-8"))
        if any(part in r["id"] for part in arguments.only.split(",")) and arguments.kind in ("", r["class"])
    ]
    results = []
    for row in rows:
        results.append(judged(run_row(row, clones)))
        print(line_of(results[-1]), flush=True)
    for entry in summary(results):
        goal = "" if entry["goal"] is None else f"  goal {'/'.join(str(g) for g in entry['goal'])}"
        print(
            f"{entry['class']:20s} {entry['rows']:3d} rows  median {entry['median']:.2f}  p90 {entry['p90']:.2f}  worst {entry['worst']:.2f} %"
            f"  interval hits {100 * entry['interval_hits']:.0f} %{goal}"
        )
    verdicts = [r for r in results if r.get("out_of_memory")]
    if verdicts:
        print(f"out-of-memory rows: {sum(r['right'] for r in verdicts)} of {len(verdicts)} not called fitting")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1), encoding="utf-8")
    return 1 if any("failed" in r for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
