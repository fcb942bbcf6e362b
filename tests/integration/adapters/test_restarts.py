"""torchrun starts the workers again after one of them has failed: every attempt has its own record, of all its ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from integration.harmless.script import environment
from trainbudget.events import End, Step
from trainbudget.trace import read_trace

SCRIPT = """
import os, sys, time, torch, torch.distributed as dist, trainbudget
dist.init_process_group("gloo")
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
with trainbudget.Monitor(backend="none", interval=0.05, listen="off", run_directory=sys.argv[1]) as monitor:
    for number in range(4 + attempt):
        with monitor.step():
            dist.all_reduce(torch.ones(1))
            time.sleep(0.05)
    time.sleep(0.3)
    if attempt == 0 and dist.get_rank() == 1:
        raise RuntimeError("once")
    if attempt == 0:
        time.sleep(60.0)  # until torchrun ends it
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_each_attempt_of_torchrun_has_a_record_of_all_ranks(tmp_path: Path) -> None:
    script, run = tmp_path / "script.py", tmp_path / "run"
    script.write_text(SCRIPT, encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1", "--standalone"]
    # Else torchrun keeps one store for all attempts, and a fast rank of the second takes the first one's addresses from it.
    own_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    done = subprocess.run(
        [*command, str(script), str(run)],
        env=environment(tmp_path) | own_store, cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    again = tmp_path / "run-2"
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["run", "run-2"]
    for directory, steps in ((run, 4), (run / "ranks" / "1", 4), (again, 5), (again / "ranks" / "1", 5)):
        facts = list(read_trace(directory))
        assert sum(f.count or 1 for f in facts if isinstance(f, Step)) == steps
    assert [path.name for path in (run / "ranks").iterdir()] == ["1"]
    ends = [[f.outcome for f in read_trace(d) if isinstance(f, End)] for d in (run / "ranks" / "1", again, again / "ranks" / "1")]
    assert ends == [["failed"], ["finished"], ["finished"]]
