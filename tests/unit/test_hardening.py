"""What a shell, a disk or somebody's hand may hand us: said in one line, and training goes on."""

from __future__ import annotations

import copy
import errno
import pickle
import socket
import threading
from pathlib import Path

import pytest

from trainbudget.config import DEFAULT_LISTEN, Settings, load
from trainbudget.engine.engine import Engine
from trainbudget.errors import ConfigError
from trainbudget.events import Allocator, Event, Gpu, Header, Process, Reading, Step
from trainbudget.live.identity import Ranks, ranks_of
from trainbudget.live.learned import LEARN_STEPS, LearnedBudget
from trainbudget.monitor import Monitor
from trainbudget.sinks.record import write_summary

# --- settings


def loaded(here, arguments=None, environ=None):
    said: list[str] = []
    return load(arguments or {}, environ=environ or {}, cwd=here, warn=said.append), said


def test_a_deleted_working_directory_has_no_file(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    said: list[str] = []
    assert load({}, environ={}, warn=said.append) == Settings()
    assert said == []


@pytest.mark.parametrize("where", ["variable", "file"])
def test_a_superscript_is_no_port(tmp_path, where):
    (tmp_path / ".git").mkdir()
    (tmp_path / "trainbudget.toml").write_text('listen = "²"\n' if where == "file" else "", encoding="utf-8")
    settings, said = loaded(tmp_path, environ={"TRAINBUDGET_LISTEN": "²"} if where == "variable" else {})
    assert settings.listen == DEFAULT_LISTEN
    assert len(said) == 1
    assert "listen: '²'" in said[0]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("a = " + "[" * 5000 + "]" * 5000 + "\n", "nested too deeply"),
        ("thresholds." + ".".join("a" * 3000) + " = 1\n", "thresholds"),
        ("stop_on = 5\n", "stop_on"),
    ],
)
def test_a_file_of_nonsense_is_one_warning(tmp_path, text, word):
    (tmp_path / ".git").mkdir()
    (tmp_path / "trainbudget.toml").write_text(text)
    settings, said = loaded(tmp_path)
    assert settings == Settings()
    assert len(said) == 1
    assert word in said[0]


def test_a_table_that_is_none_is_passed_over(tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / "pyproject.toml").write_text("[tool]\ntrainbudget = 5\n")
    assert loaded(tmp_path) == (Settings(), [])


@pytest.mark.parametrize("interval", ["1e300", "0", "0.001", "61"])
def test_the_feeder_neither_spins_nor_sleeps_for_ever(tmp_path, interval):
    settings, said = loaded(tmp_path, environ={"TRAINBUDGET_INTERVAL": interval})
    assert settings.interval_s == 0.5
    assert len(said) == 1
    assert "interval" in said[0]
    with pytest.raises(ConfigError, match="interval"):
        loaded(tmp_path, {"interval": float(interval)})


def test_an_unusable_argument_is_a_config_error(tmp_path):
    for arguments in ({"stop_on": 5}, {"interval": 10**400}):
        with pytest.raises(ConfigError):
            loaded(tmp_path, arguments)


def test_for_ever_is_what_a_thread_can_wait_for(tmp_path):
    settings, said = loaded(tmp_path, environ={"TRAINBUDGET_KEEP": "1e300"})
    assert (settings.keep_s, said) == (threading.TIMEOUT_MAX, [])


@pytest.mark.parametrize("text", ["²", "--5", "9" * 5000, "1.5", ""])
def test_ranks_that_are_no_numbers_are_unknown(text):
    assert ranks_of({"RANK": text, "WORLD_SIZE": "4"}) == Ranks()
    assert ranks_of({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": text}) == Ranks(rank=1, world_size=4)


# --- the monitor

QUIET = {"backend": "none", "record": False, "log": False}


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda monitor: pickle.loads(pickle.dumps(monitor))])
def test_a_copy_does_not_ask_for_the_port_that_its_original_has(copied):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    original = Monitor(listen=f"127.0.0.1:{port}", strict_port=True, steps_total=7, framework="own", **QUIET)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", port))
        holder.listen()
        twin = copied(original)
        assert (twin.settings, twin.run.framework, twin.started) == (original.settings, "own", False)
        with pytest.raises(ConfigError, match="strict_port"):
            Monitor(listen=f"127.0.0.1:{port}", strict_port=True, **QUIET)


def test_a_monitor_closed_before_its_start_is_inert():
    monitor = Monitor(listen="off", **QUIET)
    monitor.close()
    assert monitor.inert
    monitor.train_begin()
    for _ in range(3):
        with monitor.step():
            pass
    assert len(monitor._queue) == 0
    assert not monitor.started


# --- records


@pytest.mark.parametrize(
    ("told", "started_s"), [(-12.0, -12.0), (float("-inf"), 0.0), (float("nan"), 0.0), (-1e12, 0.0), (5.0, 0.0), (None, 0.0)]
)
def test_a_process_that_cannot_have_begun_then_began_with_the_run(told, started_s):
    engine = Engine()
    engine.feed(Header(run="r", process_started_s=told))
    engine.feed(Event(t_s=1.0, event="train_begin"))
    assert engine.timeline.started_s == started_s
    assert engine.report().wall_s == pytest.approx(1.0 - started_s)


def test_a_full_disk_leaves_no_half_summary(tmp_path, monkeypatch):
    def refused(self, *args, **kwargs):
        self.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    engine = Engine()
    engine.feed(Header(run="r"))
    report = engine.report()
    with monkeypatch.context() as full:
        full.setattr(Path, "write_text", refused)
        with pytest.raises(OSError, match="No space"):
            write_summary(tmp_path, report)
    assert list(tmp_path.iterdir()) == []
    write_summary(tmp_path, engine.report())
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


# --- learned memory

MIB, GIB = 1024.0**2, 1024.0**3


def learned_memory(levels, *, own=True, allocator=False, steps_a_reading=10):
    """Steps and readings of a run whose memory goes through `levels`; what was learned of it, and when (reading)."""
    engine, learned, found = Engine(), LearnedBudget(), []
    engine.feed(Header(run="r"))
    engine.feed(Gpu(t_s=0.0, gpu=0, memory_total_bytes=80 * GIB, owned=True))
    engine.feed(Event(t_s=0.0, event="train_begin"))
    step = 0
    for place, level in enumerate(levels):
        for _ in range(steps_a_reading):
            step += 1
            engine.feed(Step(t_s=step * 0.1, step=step, start_s=(step - 1) * 0.1))
        rows = [Process(pid=1, memory_bytes=level, own=own, alive=True)]
        engine.feed(Reading(t_s=step * 0.1, gpu=0, utilization_ratio=0.9, memory_used_bytes=level, processes=rows))
        if allocator:
            engine.feed(Allocator(t_s=step * 0.1, gpu=0, reserved_bytes=level / 2, peak_reserved_bytes=level / 2))
        fact = learned.look(engine.timeline)
        if fact is not None and fact.memory_peak_bytes is not None:
            found.append((place, fact.memory_peak_bytes.value))
    return found


def test_memory_is_learned_when_it_has_stopped_rising():
    ramp = [8 * MIB] * 8 + [n * GIB for n in range(1, 42)]
    assert learned_memory([*ramp, *[41.5 * GIB] * 40]) == [(len(ramp) + 2, 41.5 * GIB)]
    assert learned_memory(ramp) == []


def test_few_readings_of_many_quick_steps_say_nothing_of_memory():
    assert learned_memory([8 * MIB] * 10, steps_a_reading=LEARN_STEPS) == []
    assert learned_memory([2 * GIB] * 11, steps_a_reading=LEARN_STEPS) == [(10, 2 * GIB)]


def test_the_allocator_goes_before_the_device_and_others_memory_is_not_learned():
    assert learned_memory([6 * GIB] * 40, allocator=True) == [(10, 3 * GIB)]
    assert learned_memory([6 * GIB] * 40, own=False) == []
