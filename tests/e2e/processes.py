"""Commands of a user in a folder of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


def command(*arguments: str, cwd: Path, timeout_s: float = 240.0, **environ: str) -> Done:
    """`python ARGUMENTS...` with the source tree in front, TRAINBUDGET_* only as given, no progress of torch's own."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TRAINBUDGET_")}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**kept, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "TRAINBUDGET_DIR": str(cwd / "runs"), **environ},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def trainbudget(*arguments: str, cwd: Path, **environ: str) -> Done:
    return command("-m", "trainbudget", *arguments, cwd=cwd, **environ)


def run_of(folder: Path) -> Path:
    """The only run recorded below `folder`."""
    (found,) = [path for path in (folder / "runs").iterdir() if path.is_dir()]
    return found
