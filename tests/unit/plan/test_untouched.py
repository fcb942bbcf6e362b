"""A script planned beside its own run keeps its hands off what the run has written. In a process of its own: audit hooks stay."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("torch")

pytestmark = pytest.mark.slow

CHILD = """
    import io, json, os, pathlib, shutil, subprocess, sys
    from trainbudget.plan.script.untouched import Untouched
    from trainbudget.plan.simulated_device.cuda import Patches

    run, scratch = map(pathlib.Path, sys.argv[1:3])
    class Ended(BaseException): pass
    def refuse(text): raise Ended(text)
    guard, patches, told = Untouched(scratch, refuse), Patches(), {}
    guard.install(patches)
    def attempt(name, act):
        try:
            told[name] = act()
        except Ended as end:
            told[name] = "ended: " + str(end)
    checkpoint, log = run / "model.bin", run / "train.log"
    attempt("append", lambda: open(log, "a").write("again\\n"))
    attempt("read what was appended", lambda: open(log).read())
    attempt("overwrite", lambda: checkpoint.write_bytes(b"new"))
    attempt("in place", lambda: io.open(run / "notes.txt", "r+").read())
    attempt("read", lambda: (run / "data.txt").read_text())
    attempt("scratch", lambda: (scratch / "x").write_text("y"))
    attempt("make", lambda: os.makedirs(run / "more", exist_ok=True))
    attempt("git", lambda: subprocess.run(["git", "--version"], capture_output=True).returncode)
    attempt("rmtree", lambda: shutil.rmtree(run, ignore_errors=True))
    attempt("unlink", lambda: os.remove(checkpoint))
    attempt("rename", lambda: os.rename(checkpoint, run / "old.bin"))
    attempt("raw", lambda: os.open(checkpoint, os.O_WRONLY | os.O_TRUNC))
    attempt("system", lambda: os.system("true"))
    attempt("program", lambda: subprocess.run(["tensorboard", "--logdir", str(run)]))
    attempt("kill", lambda: os.kill(1, 15))
    patches.put_back()
    guard.release()
    attempt("afterwards", lambda: open(run / "free.txt", "w").write("free"))
    print(json.dumps(told))
"""


def test_what_the_run_has_written_stays_as_it_is(tmp_path):
    run, scratch = tmp_path / "run", tmp_path / "scratch"
    run.mkdir()
    scratch.mkdir()
    before = {"model.bin": "weights", "train.log": "first\n", "notes.txt": "a note", "data.txt": "data"}
    for name, text in before.items():
        (run / name).write_text(text)
    command = [sys.executable, "-c", textwrap.dedent(CHILD), str(run), str(scratch)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    told = json.loads(done.stdout)
    assert {name: (run / name).read_text() for name in before} == before
    assert told["append"] == 6
    assert told["read what was appended"] == "again\n"
    assert told["in place"] == "a note"
    assert told["read"] == "data"
    assert told["git"] == 0
    assert (run / "more").is_dir()
    ended = {name for name, text in told.items() if str(text).startswith("ended: ")}
    assert ended == {"rmtree", "unlink", "rename", "raw", "system", "program", "kill"}
    assert told["rmtree"] == f"ended: it deletes or changes {run} before it trains"
    assert told["program"] == "ended: it starts tensorboard before it trains"
    assert (run / "free.txt").read_text() == "free"
    assert not list(Path(run).glob("old.bin"))
