"""Forked, spawned, pickled, copied, switched off, started twice: no copy does anything, the original goes on."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import urllib.request

import pytest

import trainbudget
from integration.harmless.script import environment, run_directory, run_script
from trainbudget.events import End, Step
from trainbudget.trace import read_trace

FAST = {"backend": "mock:healthy", "interval": 0.02, "listen": "off", "record": False, "log": False}


def test_importing_loads_nothing_heavy(tmp_path):
    code = (
        "import sys, trainbudget; dir(trainbudget); trainbudget.Budget, trainbudget.TrainBudgetError\n"
        "heavy = {'torch', 'transformers', 'lightning', 'pytorch_lightning', 'pynvml', 'prometheus_client', 'numpy', 'psutil'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "trainbudget.Monitor\n"
        "heavy -= {'psutil'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], env=environment(tmp_path), check=True, timeout=60)


FORK = """
import os, sys, time, trainbudget
monitor = trainbudget.Monitor(backend="mock:healthy", interval=0.05, run_name="small", listen="127.0.0.1:0")
monitor.start()
with monitor.step(tokens=1):
    time.sleep(0.02)
child = os.fork()
if child == 0:
    with monitor.step(tokens=1):  # a loader worker that meets our hooks
        pass
    monitor.close("failed")
    assert monitor.inert
    import gc; gc.collect()
    sys.exit(0)  # Python's own end, with all its exit functions
assert os.waitpid(child, 0)[1] == 0
for _ in range(9):
    with monitor.step(tokens=1):
        time.sleep(0.02)
monitor.train_end()
print("trained", time.time(), flush=True)
"""


def test_a_forked_child_neither_writes_nor_ends_the_parents_run(tmp_path):
    ended = run_script(FORK, tmp_path)
    assert ended.code == 0, ended.err
    facts = list(read_trace(run_directory(tmp_path)))
    assert sum(f.count or 1 for f in facts if isinstance(f, Step)) == 10
    assert [f.outcome for f in facts if isinstance(f, End)] == ["finished"]


WORKERS = """
import time, trainbudget
from torch.utils.data import DataLoader
monitor = trainbudget.Monitor(backend="mock:healthy", interval=0.05, run_name="small", listen="127.0.0.1:0")
if __name__ == "__main__":
    monitor.start()
    port = int(monitor.url.rsplit(":", 1)[1])
    loader = DataLoader(list(range(8)), num_workers=2, multiprocessing_context="{context}", persistent_workers=True)
    for _ in range(2):
        for batch in monitor.batches(loader):
            with monitor.step(samples=len(batch)):
                pass
    monitor.close()
    import socket
    with socket.socket() as probe:  # the workers still live: they must not hold the port
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
    print("trained", time.time(), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_loader_workers(tmp_path, context):
    ended = run_script(WORKERS.format(context=context), tmp_path)
    assert ended.code == 0, ended.err
    facts = list(read_trace(run_directory(tmp_path)))
    assert sum(f.count or 1 for f in facts if isinstance(f, Step)) == 16


def test_a_copy_of_a_running_monitor_is_a_fresh_one():
    with trainbudget.Monitor(price="2 USD/h", **FAST) as monitor:
        for twin in (copy.deepcopy(monitor), pickle.loads(pickle.dumps(monitor)), copy.copy(monitor)):
            assert twin is not monitor
            assert not twin.started
            assert twin.settings == monitor.settings
        with monitor.step():
            pass
    assert monitor.report.steps.done == 1


FRESH = """
import multiprocessing, trainbudget
def steps_of(monitor):
    with monitor:
        for _ in range(3):
            with monitor.step():
                pass
    return monitor.report.steps.done
if __name__ == "__main__":
    monitor = trainbudget.Monitor(backend="mock:healthy", interval=0.05, listen="off", run_name="small")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(steps_of, (monitor,)) == 3
"""


def test_a_monitor_that_runs_nowhere_yet_goes_to_a_spawned_process(tmp_path):
    ended = run_script(FRESH, tmp_path)
    assert ended.code == 0, ended.err
    assert sum(f.count or 1 for f in read_trace(run_directory(tmp_path)) if isinstance(f, Step)) == 3


WORKER = """
import multiprocessing, time, trainbudget
def prepare(monitor):
    with monitor.step():
        pass
    time.sleep(0.2)  # the note is written on a thread of its own
    return monitor.inert
if __name__ == "__main__":
    with trainbudget.Monitor(backend="mock:healthy", interval=0.05, listen="off", run_name="small") as monitor:
        with monitor.step(), multiprocessing.get_context("{context}").Pool(1) as pool:
            assert pool.apply(prepare, (monitor,))
"""


@pytest.mark.slow
@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_a_worker_with_a_copy_of_a_running_monitor_has_no_run_of_its_own(tmp_path, context):
    ended = run_script(WORKER.format(context=context), tmp_path)
    assert ended.code == 0, ended.err
    steps = [f for f in read_trace(run_directory(tmp_path)) if isinstance(f, Step)]
    assert sum(f.count or 1 for f in steps) == 1


RANKS = """
import sys, time, trainbudget, torch.distributed as dist, torch.multiprocessing as mp
def train(rank, monitor, store):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
    with monitor:
        for _ in range(3 + rank):
            with monitor.step():
                time.sleep(0.05)
    dist.destroy_process_group()
if __name__ == "__main__":
    monitor = trainbudget.Monitor(backend="none", interval=0.05, listen="off", run_name="small", run_directory=sys.argv[1])
    mp.spawn(train, args=(monitor, sys.argv[1] + ".store"), nprocs=2)
"""


@pytest.mark.slow
def test_ranks_that_no_launcher_tells_of_are_those_of_the_process_group(tmp_path):
    script, run = tmp_path / "script.py", tmp_path / "run"
    script.write_text(RANKS, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), str(run)],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for rank, directory in enumerate((run, run / "ranks" / "1")):
        facts = list(read_trace(directory))
        assert (facts[0].rank, facts[0].world_size) == (rank, 2)
        assert sum(f.count or 1 for f in facts if isinstance(f, Step)) == 3 + rank
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["run"]


def test_two_monitors_side_by_side_have_their_own_port_and_record(tmp_path):
    settings = FAST | {"record": True, "listen": "127.0.0.1:39837", "run_directory": str(tmp_path / "run")}
    with trainbudget.Monitor(**settings) as first:
        assert first.directory == tmp_path / "run"
        with trainbudget.Monitor(**settings) as second:
            assert second.directory == tmp_path / "run-2"  # not the one that is being written
            assert first.url != second.url
            with first.step():
                pass
            for _ in range(2):
                with second.step():
                    pass
    assert (first.report.steps.done, second.report.steps.done) == (1, 2)
    for monitor, steps in ((first, 1), (second, 2)):
        facts = list(read_trace(monitor.directory))
        assert sum(f.count or 1 for f in facts if isinstance(f, Step)) == steps


def test_a_notebook_cell_that_is_run_again_gets_the_port_back():
    urls = []
    for _ in range(3):
        with trainbudget.Monitor(**FAST | {"listen": "127.0.0.1:39901"}) as monitor:
            urls.append(monitor.url)
            with monitor.step():
                pass
            assert urllib.request.urlopen(f"{monitor.url}/metrics", timeout=5).status == 200
    assert urls == ["http://127.0.0.1:39901"] * 3


def test_a_closed_monitor_does_nothing():
    monitor = trainbudget.Monitor(**FAST)
    with monitor, monitor.step():
        pass
    monitor.start()
    with monitor.step(tokens=1), monitor.phase("eval"):
        pass
    monitor.train_end()
    monitor.close()
    assert monitor.report.steps.done == 1


OFF = """
import threading, trainbudget
monitor = trainbudget.Monitor(budget={"cost": "1 USD"}, price="2 USD/h")
with monitor:
    for batch in monitor.batches([1, 2, 3]):
        with monitor.step(tokens=batch), monitor.phase("eval"):
            pass
assert threading.active_count() == 1, threading.enumerate()
assert (monitor.report, monitor.url, monitor.directory) == (None, None, None)
"""


def test_switched_off_nothing_happens(tmp_path):
    ended = run_script(OFF, tmp_path, TRAINBUDGET_DISABLED="1")
    assert (ended.code, ended.out, ended.err) == (0, "", "")
    assert {path.name for path in tmp_path.iterdir()} == {"script.py"}
