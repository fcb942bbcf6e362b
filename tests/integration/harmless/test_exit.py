"""However a process ends, it ends at once, and its record says how."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from integration.harmless.script import LOOP, environment, run_directory, run_script
from trainbudget.events import End, Event, Header, Step
from trainbudget.trace import read_trace


def outcome(folder: Path) -> str:
    return str(json.loads((run_directory(folder) / "summary.json").read_text())["outcome"])


@pytest.mark.parametrize(
    ("step", "code", "word"),
    [
        ("pass", 0, "finished"),
        ("if number == 10: raise RuntimeError('mine')", 1, "failed"),
        ("if number == 10: sys.exit(3)", 3, "interrupted"),
        ("if number == 10: raise KeyboardInterrupt", 130, "interrupted"),
        ("if number == 10: monitor.exception(SystemExit(143)); sys.exit(143)", 143, "interrupted"),
    ],
)
def test_a_script_ends_as_without_us(tmp_path, step, code, word):
    ended = run_script(LOOP.format(step=step), tmp_path)
    assert ended.code in (code, -signal.SIGINT if code == 130 else code)
    assert outcome(tmp_path) == word
    assert ("RuntimeError: mine" in ended.err) == (word == "failed")
    if word == "finished":
        assert ended.exit_s < 2.0


def test_a_real_interrupt_is_recorded(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(LOOP.format(step="print(number, flush=True); time.sleep(0.2)"), encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, str(script)],
        env=environment(tmp_path),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A shell's background jobs ignore the signal, and children inherit that: the test must not depend on who started it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,  # noqa: PLW1509 - one thread here
    )
    for _ in range(4):
        process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    events = [f.event for f in read_trace(run_directory(tmp_path)) if isinstance(f, Event)]
    assert events[-1] == "interrupt"
    assert outcome(tmp_path) == "interrupted"


def replayed(folder: Path, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trainbudget", "replay", str(directory), "--json"],
        env=environment(folder), capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_kill_ends_the_process_at_once_loses_little_and_replays(tmp_path, number):
    """SIGTERM too: a handler would keep a process that is stuck in a collective or a driver call alive."""
    script = tmp_path / "script.py"
    endless = LOOP.replace("range(20)", "range(100000)")
    script.write_text(endless.format(step="print(number, flush=True)"), encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, str(script)], env=environment(tmp_path), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    done = 0
    until = time.monotonic() + 4.0
    while time.monotonic() < until:
        done = int(process.stdout.readline())
    directory = run_directory(tmp_path)
    assert "the run is still going on" in replayed(tmp_path, directory).stderr
    process.send_signal(number)
    began = time.monotonic()
    assert process.wait(10) == -number
    assert time.monotonic() - began < 2.0
    facts = list(read_trace(directory))
    steps = [f for f in facts if isinstance(f, Step)]
    assert steps[-1].step >= done / 3  # about the last second of four is missing at most; contract: five
    assert not any(isinstance(f, End) for f in facts)
    replay = replayed(tmp_path, directory)
    assert "no end: the process was killed (SIGTERM" in replay.stderr
    assert json.loads(replay.stdout)["summary"]["steps"] == steps[-1].step


CHATTY = """
import sys, time, logging, trainbudget
monitor = trainbudget.Monitor(backend="mock:healthy", interval=0.02, listen="off", run_name="small")
monitor.start()
for number in range(10):
    with monitor.step(tokens=1):
        time.sleep(0.01)
    for _ in range(200):
        monitor._counters.note(logging.WARNING, "x" * 1000)  # more than a pipe holds
monitor.train_end()
open(sys.argv[1], "w").write("trained")
"""


@pytest.mark.parametrize("kind", ["stuck", "closed"])
@pytest.mark.parametrize("stream", ["stderr", "stdout"])
def test_a_reader_that_stops_reading_or_leaves(tmp_path, kind, stream):
    script = tmp_path / "script.py"
    text = CHATTY if stream == "stderr" else CHATTY.replace("monitor.start()", "monitor.start(); sys.stderr = sys.stdout")
    script.write_text(text, encoding="utf-8")
    said = tmp_path / "said"
    read, write = os.pipe()
    process = subprocess.Popen(
        [sys.executable, str(script), str(said)], env=environment(tmp_path), cwd=tmp_path,
        **{"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: write},
    )  # fmt: skip
    os.close(write)
    if kind == "closed":
        os.close(read)
    began = time.monotonic()
    while not said.exists() and time.monotonic() - began < 30.0:
        time.sleep(0.02)
    trained = time.monotonic()
    try:
        process.wait(10)
    finally:
        process.kill()
        if kind == "stuck":
            os.close(read)
    assert said.exists(), "the training itself was held up"
    assert time.monotonic() - trained < 2.0  # 1 s of patience, the interpreter's own end, a busy machine


TQDM = """
import io, os, sys, threading, time
import trainbudget, tqdm
monitor = trainbudget.Monitor(backend="mock:healthy", interval=0.02, listen="off", run_name="small")
monitor.start()
held = threading.Event()
def die_with_the_lock():
    tqdm.tqdm.get_lock().acquire()
    held.set()
threading.Thread(target=die_with_the_lock, daemon=True).start()
held.wait()
bar = object.__new__(tqdm.tqdm)
tqdm.tqdm._instances.add(bar)
for number in range(10):
    with monitor.step(tokens=1):
        time.sleep(0.01)
monitor.train_end()
tqdm.tqdm._instances.discard(bar)
print("trained", time.time(), flush=True)
"""


def test_a_progress_bar_whose_lock_is_never_given_back(tmp_path):
    ended = run_script(TQDM, tmp_path)
    assert ended.code == 0, ended.err
    assert ended.exit_s < 2.0
    assert "small finished" in ended.err


HANDLER = """
import logging, sys, threading, time, trainbudget
class Stuck(logging.Handler):
    def emit(self, record):
        if record.name == "trainbudget":
            threading.Event().wait()
logging.getLogger().addHandler(Stuck())
monitor = trainbudget.Monitor(backend="mock:healthy", interval=0.02, listen="off", run_name="small")
monitor.start()
for number in range(10):
    with monitor.step(tokens=1):
        time.sleep(0.01)
monitor.train_end()
print("trained", time.time(), flush=True)
"""


def test_a_log_handler_that_is_stuck(tmp_path):
    ended = run_script(HANDLER, tmp_path)
    assert ended.code == 0, ended.err
    assert ended.exit_s < 2.0  # 1 s of patience and the interpreter's own end


NO_THREADS = """
import threading, time, trainbudget
real = threading.Thread.start
def start(self):
    if self.name.startswith("trainbudget"):
        raise RuntimeError("can't start new thread")
    real(self)
threading.Thread.start = start
monitor = trainbudget.Monitor(backend="mock:healthy", listen="off", run_name="small")
with monitor:
    for number in range(50):
        with monitor.step(tokens=1):
            pass
assert monitor.inert and monitor.report is None
print("trained", time.time(), flush=True)
"""


def test_a_system_without_threads(tmp_path):
    ended = run_script(NO_THREADS, tmp_path)
    assert (ended.code, ended.err) == (0, "")
    assert ended.exit_s < 2.0


DISK = """
import os, resource, shutil, sys, time, trainbudget
monitor = trainbudget.Monitor(backend="mock:healthy", interval=0.02, listen="off", run_name="small")
if {case!r} == "full":
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))  # no file of this process grows beyond
monitor.start()
monitor.directory
for number in range(40):
    with monitor.step(tokens=1):
        time.sleep(0.11 if number % 10 == 0 else 0.01)
    if {case!r} == "gone" and number == 20:
        shutil.rmtree(monitor.directory.parent)
monitor.train_end()
print("trained", time.time(), flush=True)
"""


@pytest.mark.parametrize("case", ["full", "gone", "readonly", "file"])
def test_a_disk_that_fails(tmp_path, case):
    more = {}
    if case == "readonly":
        more["TRAINBUDGET_DIR"] = "/proc/trainbudget"
    if case == "file":
        (tmp_path / "runs").write_text("in the way")
    ended = run_script(DISK.format(case=case), tmp_path, **more)
    assert ended.code == 0, ended.err
    assert ended.exit_s < 2.0
    assert "small finished: 40 steps" in ended.err  # the report is whole all the same
    if case == "full":
        assert "fault in record (OSError: [Errno 27]" in ended.err
        assert isinstance(next(iter(read_trace(run_directory(tmp_path)))), Header)
    if case == "gone":
        facts = list(read_trace(run_directory(tmp_path)))
        assert isinstance(facts[0], Header)
        assert [f.outcome for f in facts if isinstance(f, End)] == ["finished"]
    if case in ("readonly", "file"):
        assert "no record" in ended.err
        assert "TRAINBUDGET_DIR" in ended.err
