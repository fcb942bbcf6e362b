"""Record the planted runs: `PYTHONPATH=tests python -m planted.record [NAME ...] [--out DIR]`.

Every run is a process of its own that really trains on the CPU, really commits its fault and is watched by the real
`Monitor` with the backend `none`. A trace is never edited afterwards: it is compressed, that is all.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DATA = Path(__file__).parent.parent / "data" / "planted"
#: Module of each framework's runs; a run's name begins with the key.
MODULES = {"loop": "loop_runs", "huggingface": "huggingface_runs", "lightning": "lightning_runs"}


def runs_of(framework: str) -> dict[str, object]:
    """Name -> function; imports the framework."""
    return dict(importlib.import_module(f"planted.{MODULES[framework]}").RUNS)


def train(name: str, directory: Path) -> None:
    """Do one run in this process and leave its record in `directory`."""
    run = runs_of(name.split("_", 1)[0])[name]
    run({"backend": "none", "listen": "off", "run_directory": str(directory), "run_name": name})  # type: ignore[operator]


def record(name: str, out: Path, *, timeout_s: float = 600.0) -> Path:
    """Do one run in a process of its own; the compressed trace.

    Raises:
        subprocess.CalledProcessError: the run failed in a way that it was not meant to.
    """
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "run"
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("TRAINBUDGET_", "SLURM_"))}
        environment |= {"PYTHONPATH": str(Path(__file__).parent.parent), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        subprocess.run(
            [sys.executable, "-m", "planted.record", "--train", str(directory), name],
            check=True,
            timeout=timeout_s,
            env=environment,
            cwd=folder,
        )
        out.mkdir(parents=True, exist_ok=True)
        target = out / f"{name}.jsonl.gz"
        with open(directory / "trace.jsonl", "rb") as source, gzip.GzipFile(target, "wb", mtime=0) as packed:
            shutil.copyfileobj(source, packed)
    return target


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="runs; default: all of them")
    parser.add_argument("--out", type=Path, default=DATA)
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train is not None:
        train(args.names[0], args.train)
        return 0
    names = args.names or [name for framework in MODULES for name in runs_of(framework)]
    for name in names:
        began = time.monotonic()
        path = record(name, args.out)
        print(f"{name}: {time.monotonic() - began:.0f} s, {path.stat().st_size / 1024:.0f} KiB", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
