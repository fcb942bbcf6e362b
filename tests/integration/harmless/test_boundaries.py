"""A fault at any boundary: all training steps run, nothing is raised, closing takes no longer than it may."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from integration.harmless.boundaries import ELSEWHERE, boundaries
from integration.harmless.run import STEPS, fault_at, quick, train

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")

ALL = boundaries()
TESTS = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _ours_alone(monkeypatch):
    monkeypatch.delenv("TRAINBUDGET_DISABLED", raising=False)


def test_the_list_is_not_empty_and_nothing_is_excused_twice():
    targets = [b.target for b in ALL]
    assert len(targets) > 50
    assert not set(targets) & ELSEWHERE.keys()


def test_without_a_fault_everything_is_recorded(tmp_path):
    with quick():
        done, _, monitor = train(tmp_path)
    assert done == STEPS
    assert monitor.report.steps.done == STEPS
    assert monitor._counters.errors == {}
    assert monitor.report.outcome == "finished"


@pytest.mark.parametrize("mode", ["raise", pytest.param("garbage", marks=pytest.mark.slow)])
@pytest.mark.parametrize("boundary", ALL, ids=str)
def test_a_fault_is_not_felt_by_the_training(boundary, mode, tmp_path):
    with quick(), fault_at(boundary.target, mode) as fault:
        done, closing_s, _ = train(tmp_path)
    assert done == STEPS
    assert closing_s < 2.0
    assert fault.calls > 0, "the run never came here: reach it in run.py, or give the reason in ELSEWHERE"


@pytest.mark.slow
@pytest.mark.parametrize("boundary", [b for b in ALL if b.hangs], ids=str)
def test_a_hang_is_not_felt_by_the_training(boundary, tmp_path):
    with quick(), fault_at(boundary.target, "hang") as fault:
        done, closing_s, _ = train(tmp_path)
    assert done == STEPS
    assert closing_s < 2.0
    assert fault.calls > 0


_EXIT = """
import sys, tempfile, time
from pathlib import Path
from integration.harmless.boundaries import boundaries
from integration.harmless.run import fault_at, quick, train
stuck = []
with quick():
    for boundary in boundaries():
        if boundary.hangs:
            with tempfile.TemporaryDirectory() as folder:
                context = fault_at(boundary.target, "hang")
                fault = context.__enter__()
                release, fault.release = fault.release, __import__("threading").Event()  # stays stuck until the end
                train(Path(folder))
                context.__exit__(None, None, None)
                stuck.append(boundary.target)
print("trained", len(stuck), time.time(), flush=True)
"""


@pytest.mark.slow
def test_a_process_full_of_stuck_threads_exits_at_once(tmp_path):
    script = tmp_path / "stuck.py"
    script.write_text(textwrap.dedent(_EXIT), encoding="utf-8")
    import time

    done = subprocess.run(
        [sys.executable, str(script)],
        env={"PYTHONPATH": f"{TESTS}:{':'.join(p for p in sys.path if p)}", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    ended = time.time()
    assert done.returncode == 0, done.stderr[-2000:]
    word, count, when = done.stdout.split()[-3:]
    assert word == "trained"
    assert int(count) == sum(b.hangs for b in ALL)
    assert ended - float(when) < 2.0
