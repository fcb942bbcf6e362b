"""Backends by name."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trainbudget.errors import ConfigError
from trainbudget.events import Header, Reading
from trainbudget.gpu import open_backend
from trainbudget.trace import write_trace


@pytest.mark.parametrize(("name", "expected"), [("auto", "nvml"), ("nvml", "nvml"), ("mock", "mock"), ("mock:leak", "mock")])
def test_a_name_gives_its_backend(name, expected):
    assert open_backend(name).name == expected


def test_none_is_no_backend():
    assert open_backend("none") is None


def test_the_mock_takes_its_scenario():
    assert open_backend("mock:leak").scenario == "leak"
    assert open_backend("mock").scenario == "healthy"


@pytest.mark.parametrize(
    ("arguments", "cards"), [({}, 1), ({"local_world_size": 4}, 4), ({"local_rank": 2}, 3), ({"gpus": 8}, 8)]
)
def test_the_mock_has_a_card_for_each_rank(arguments, cards):
    assert len(open_backend("mock", **arguments).open()) == cards


def test_a_path_is_a_recording(tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    write_trace(path / "trace.jsonl", [Header(), Reading(gpu=0)])
    assert [open_backend(str(p)).name for p in (path, path / "trace.jsonl")] == ["recorded", "recorded"]


@pytest.mark.parametrize("name", ["cuda", "", "mock:nonsense", "/no/such/trace.jsonl", "nothing.jsonl"])
def test_anything_else_is_refused(name):
    with pytest.raises(ConfigError):
        open_backend(name)


def test_nothing_of_nvidia_is_loaded_before_a_device_is_opened():
    code = (
        "import sys; from trainbudget.gpu import open_backend; open_backend('auto'); open_backend('mock').open();"
        "import trainbudget.gpu.mapping; print('pynvml' in sys.modules, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
