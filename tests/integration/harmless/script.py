"""Running a small training script in a process of its own and watching how it ends."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

SRC = Path(__file__).parents[3] / "src"

#: A run that prints when its training is over; `{body}` is one step.
LOOP = """
import sys, time, trainbudget
monitor = trainbudget.Monitor(backend="mock:healthy", interval=0.05, listen="off", run_name="small")
monitor.start()
for number in range(20):
    with monitor.step(tokens=1):
        time.sleep(0.01)
    {step}
monitor.train_end()
print("trained", time.time(), flush=True)
"""


@dataclass(frozen=True)
class Ended:
    """How it ended: code, output, seconds between the last word and the exit (None = it never said it)."""

    code: int
    out: str
    err: str
    exit_s: float | None


def environment(folder: Path, **more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TRAINBUDGET_")}
    return {**kept, "PYTHONPATH": str(SRC), "TRAINBUDGET_DIR": str(folder / "runs"), "OMP_NUM_THREADS": "1", **more}


def run_script(text: str, folder: Path, *, timeout_s: float = 60.0, **more: str) -> Ended:
    script = folder / "script.py"
    script.write_text(textwrap.dedent(text), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment(folder, **more),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr, _since_trained(done.stdout))


def _since_trained(out: str) -> float | None:
    now = time.time()
    for line in reversed(out.splitlines()):
        if line.startswith("trained "):
            return now - float(line.split()[1])
    return None


def run_directory(folder: Path) -> Path:
    """The only run below `folder`."""
    (found,) = [path for path in (folder / "runs").iterdir() if path.is_dir()]
    return found
