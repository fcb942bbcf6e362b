"""CPU seconds and memory of `trainbudget plan` as a user types it, start-up and child processes included."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

LLAMA = {"model_type": "llama", "vocab_size": 32000, "max_position_embeddings": 4096, "hidden_act": "silu"}
MODELS: dict[str, dict[str, Any]] = {
    "7b": {
        **LLAMA,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
    },
    "70b": {
        **LLAMA,
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
    },
}
PLANS = {
    "7b full": ("7b", "--gpu A100-80GB --batch 4 --seq 2048"),
    "7b lora": ("7b", "--gpu A100-80GB --batch 4 --seq 2048 --lora 16"),
    "70b fsdp": ("70b", "--gpu H100-80GB --count 64 --strategy fsdp --batch 1 --seq 4096 --checkpointing"),
    "7b on L4": ("7b", "--gpu L4 --batch 4 --seq 2048"),
}


def main(wanted: list[str]) -> None:
    """Every plan, with its searches and without; arguments choose plans by name."""
    with tempfile.TemporaryDirectory() as folder:
        for name, config in MODELS.items():
            Path(folder, name).mkdir()
            Path(folder, name, "config.json").write_text(json.dumps(config))
        print(f"{'plan':<12}{'searches':>10}{'wall s':>10}{'CPU s':>10}{'peak MiB':>10}")
        for plan, (model, flags) in PLANS.items():
            if not wanted or plan in wanted:
                for extra in ([], ["--no-search"]):
                    measure(plan, ["--model", str(Path(folder, model)), *flags.split(), *extra])


def measure(plan: str, arguments: list[str]) -> None:
    """One line; CPU seconds are user and system, the peak is of the largest process so far."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "trainbudget", "plan", "--json", *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 3):
        sys.exit(f"{plan}: exit {done.returncode}: {done.stderr.strip()[-300:]}")
    after, wall_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - started
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    searched = "no" if "--no-search" in arguments else "yes"
    print(f"{plan:<12}{searched:>10}{wall_s:>10.1f}{cpu_s:>10.1f}{after.ru_maxrss / 1024:>10.0f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
