"""Bytes of DeepSpeed ZeRO 1, 2 and 3 counted on real CPU ranks over gloo, written to ``tests/integration/plan/zero_counted.json``.

    python -m venv ds && DS_ACCELERATOR=cpu DS_BUILD_OPS=0 ds/bin/pip install torch deepspeed numpy
    ds/bin/python bench/prediction/zero_ranks.py                     # every row, about twenty seconds each
    ds/bin/python bench/prediction/zero_ranks.py --only zero2-bf16   # print the rows whose name begins so, write nothing

DeepSpeed is not among the development dependencies: transformers, accelerate and Lightning behave differently once it is installed.
What a GPU would not allocate is left out, by where it is made: see ``tests/integration/plan/counted_allocations.py``.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
COUNTED = ROOT / "tests" / "integration" / "plan" / "zero_counted.json"
NETWORK = ROOT / "tests" / "integration" / "plan"  # rank_memory.Net, the model the other strategies are counted with
STEPS = 3  # the optimizer makes its state in the first
LET_GO_S = 0.003  # gloo's thread drops its reference to a tensor shortly after the wait returns; seen only if it is not the last
DRIFT_BYTES = 1024  # held more at the start of the third step than of the second: a free was missed, count again
ATTEMPTS = 5

# Small against the model's 2.36 million parameters (the largest has 262144), so that buckets fill, split and overflow.
ZERO12 = {"reduce_bucket_size": 300_000}
ZERO3 = {"reduce_bucket_size": 300_000, "stage3_param_persistence_threshold": 2000, "stage3_prefetch_bucket_size": 300_000}
SMALL3 = {**ZERO3, "stage3_max_live_parameters": 600_000, "stage3_max_reuse_distance": 500_000}


def row(stage: int, precision: str, micro_steps: int, world: int, note: str = "", **options: Any) -> dict[str, Any]:
    defaults = ZERO3 if stage == 3 else ZERO12
    name = f"zero{stage}-{precision}-micro{micro_steps}-world{world}" + (f"-{note}" if note else "")
    return {
        "name": name,
        "stage": stage,
        "precision": precision,
        "micro_steps": micro_steps,
        "world": world,
        "options": {**defaults, **options},
    }


ROWS = [
    *(row(stage, precision, micro, 2) for stage in (1, 2, 3) for precision in ("fp32", "bf16") for micro in (1, 3)),
    *(row(stage, "bf16", 1, 4) for stage in (1, 2, 3)),
    *(row(stage, "bf16", micro, 2, "overlap", overlap_comm=True) for stage in (1, 2) for micro in (1, 3)),
    *(row(stage, "bf16", 1, 2, "oversized", reduce_bucket_size=100_000) for stage in (1, 2, 3)),
    *(row(2, "bf16", micro, 2, "accum32", grad_accum_dtype="fp32") for micro in (1, 3)),
    row(3, "bf16", 1, 2, "no-prefetch", stage3_prefetch_bucket_size=0),
    row(3, "bf16", 1, 2, "few-live", **{k: v for k, v in SMALL3.items() if k not in ZERO3}),
    row(3, "fp32", 1, 2, "few-live", **{k: v for k, v in SMALL3.items() if k not in ZERO3}),
    row(3, "bf16", 1, 2, "groups", sub_group_size=400_000),
    row(3, "bf16", 1, 2, "defaults", stage3_param_persistence_threshold=100_000, stage3_prefetch_bucket_size=50_000_000),
]


def count(wanted: dict[str, Any], rank: int, port: int) -> dict[str, int]:
    """Train a few steps as one rank and count."""
    os.environ.update(DS_ACCELERATOR="cpu", DS_BUILD_OPS="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(wanted["world"]), LOCAL_SIZE=str(wanted["world"]))
    import torch

    wait = torch.distributed.Work.wait

    def wait_and_let_go(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = wait(self, *args, **kwargs)
        time.sleep(LET_GO_S)
        return result

    torch.distributed.Work.wait = wait_and_let_go
    import deepspeed

    sys.path.insert(0, str(NETWORK))
    import rank_memory
    from counted_allocations import events_of, held_after, mark, peaks, recorded

    torch.set_num_threads(1)
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    options = dict(wanted["options"])
    accumulate = options.pop("grad_accum_dtype", None)
    settings = {
        "train_micro_batch_size_per_gpu": rank_memory.BATCH,
        "gradient_accumulation_steps": wanted["micro_steps"],
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": wanted["stage"], **options},
        "bf16": {"enabled": wanted["precision"] == "bf16"},
        **({"data_types": {"grad_accum_dtype": accumulate}} if accumulate else {}),
    }

    with recorded() as profiler:
        net = rank_memory.Net().to(torch.bfloat16 if wanted["precision"] == "bf16" else torch.float32)
        optimizer = torch.optim.AdamW(net.parameters(), foreach=True)
        engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=settings, dist_init_required=False)
        for _ in range(STEPS):
            mark("step")
            for micro in range(wanted["micro_steps"]):
                mark("forward")
                ids = torch.zeros(rank_memory.BATCH, rank_memory.LENGTH, dtype=torch.long)
                loss = rank_memory.loss_of(engine, ids)
                mark("backward")
                engine.backward(loss)
                mark("optimizer" if micro == wanted["micro_steps"] - 1 else "between")
                engine.step()
        mark("end")
    torch.distributed.destroy_process_group()
    if os.environ.get("ZERO_RANKS_EVENTS") and rank == 0:  # every allocation, to see where a replay differs
        with open(os.environ["ZERO_RANKS_EVENTS"], "w") as lines:
            for event, held in held_after(events_of(profiler)):
                where = "/".join(name for name, _ in event.around[-5:])
                lines.write(f"{event.bytes:>12} {held:>12} {event.mark} {where}\n")
    return peaks(profiler)


def run(wanted: dict[str, Any]) -> dict[str, Any]:
    """Start the ranks of one row; again while a free was missed.

    Raises:
        RuntimeError: a rank failed, or frees were missed every time.
    """
    for _ in range(ATTEMPTS):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [sys.executable, str(Path(__file__).resolve()), "--rank"]
        ranks = [
            subprocess.Popen(
                [*command, str(rank), "--port", str(port), "--row", json.dumps(wanted)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(wanted["world"])
        ]
        outputs = [process.communicate(timeout=600) for process in ranks]
        if any(process.returncode for process in ranks):
            raise RuntimeError(f"{wanted['name']}: {outputs[0][1][-3000:]}")
        found = json.loads(next(line for line in outputs[0][0].splitlines() if line.startswith('{"forward')))
        if abs(found.pop("drift_bytes")) <= DRIFT_BYTES:
            return {**wanted, **found}
    raise RuntimeError(f"{wanted['name']}: bytes held grew from step to step in each of {ATTEMPTS} runs")


def versions() -> dict[str, str]:
    from importlib.metadata import version

    return {"python": sys.version.split()[0], "torch": version("torch"), "deepspeed": version("deepspeed")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose name begins so; nothing is written")
    parser.add_argument("--out", type=Path, default=COUNTED)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--row", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        print(json.dumps(count(arguments.row, arguments.rank, arguments.port)))
        return
    found = []
    for wanted in ROWS:
        if wanted["name"].startswith(arguments.only):
            found.append(run(wanted))
            print(json.dumps(found[-1]), flush=True)
    if not arguments.only:
        about = {"made_by": "bench/prediction/zero_ranks.py", "backend": "gloo", "versions": versions()}
        rows = ",\n".join("  " + json.dumps(r) for r in found)
        arguments.out.write_text(json.dumps(about)[:-1] + ', "rows": [\n' + rows + "\n]}\n")


if __name__ == "__main__":
    main()
