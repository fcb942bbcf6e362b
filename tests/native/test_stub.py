"""The scripted library itself: what it answers is what its state says."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pynvml
import pytest

from native.build import build, implemented_functions, known_functions
from native.fake_nvml import FakeNvml, uuid_of


@pytest.fixture
def fake(tmp_path):
    driver = FakeNvml(tmp_path, cards=2)
    driver.load()
    yield driver
    driver.unload()


@pytest.fixture
def card(fake):
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetHandleByIndex(0)


def code_of(function, *args) -> int | None:
    try:
        function(*args)
    except pynvml.NVMLError as err:
        return err.value
    return None


def test_a_change_is_seen_at_the_next_call(fake, card):
    assert pynvml.nvmlDeviceGetPowerUsage(card) == 312_345
    fake.card(0, power_mw=99_000)
    assert pynvml.nvmlDeviceGetPowerUsage(card) == 99_000


def test_a_value_that_is_not_given_is_not_supported(fake, card):
    fake.without("power_mw")
    assert code_of(pynvml.nvmlDeviceGetPowerUsage, card) == 3


@pytest.mark.parametrize("code", [1, 2, 3, 4, 6, 9, 10, 12, 13, 15, 16, 18, 20, 25, 28, 999])
def test_a_forced_code_is_raised_by_pynvml(fake, card, code):
    fake.fail("nvmlDeviceGetPowerUsage", code)
    assert code_of(pynvml.nvmlDeviceGetPowerUsage, card) == code
    fake.fail("nvmlDeviceGetPowerUsage", 0)
    assert code_of(pynvml.nvmlDeviceGetPowerUsage, card) is None


def test_a_code_can_be_forced_on_one_card(fake, card):
    other = pynvml.nvmlDeviceGetHandleByIndex(1)
    fake.fail("*", 15, card=0)
    assert code_of(pynvml.nvmlDeviceGetPowerUsage, card) == 15
    assert code_of(pynvml.nvmlDeviceGetHandleByIndex, 0) == 15
    assert code_of(pynvml.nvmlDeviceGetHandleByUUID, uuid_of(0)) == 15
    assert pynvml.nvmlDeviceGetPowerUsage(other) == 312_345


def test_a_function_that_nobody_wrote_refuses(fake, card):
    assert "nvmlDeviceGetFanSpeed" in known_functions() - implemented_functions()
    assert code_of(pynvml.nvmlDeviceGetFanSpeed, card) == 3
    fake.fail("nvmlDeviceGetFanSpeed", 10)
    assert code_of(pynvml.nvmlDeviceGetFanSpeed, card) == 10


def test_a_delay_is_taken_on_its_card_only(fake, card):
    other = pynvml.nvmlDeviceGetHandleByIndex(1)
    fake.delay("nvmlDeviceGetPowerUsage", 120, card=0)
    begin_s = time.perf_counter()
    pynvml.nvmlDeviceGetPowerUsage(card)
    middle_s = time.perf_counter()
    pynvml.nvmlDeviceGetPowerUsage(other)
    assert middle_s - begin_s >= 0.12
    assert time.perf_counter() - middle_s < 0.12


def test_nothing_answers_before_the_start(fake):
    assert code_of(pynvml.nvmlDeviceGetCount) == 1


def test_a_start_and_an_end_are_counted(fake):
    pynvml.nvmlInit()
    pynvml.nvmlInit()
    pynvml.nvmlShutdown()
    assert pynvml.nvmlDeviceGetCount() == 2
    pynvml.nvmlShutdown()
    assert code_of(pynvml.nvmlDeviceGetCount) == 1
    assert fake.calls("nvmlInitWithFlags") == 2


def test_a_foreign_handle_is_refused(fake, card):
    assert code_of(pynvml.nvmlDeviceGetPowerUsage, None) == 2


def test_memory_of_another_version_is_refused(fake, card):
    assert code_of(pynvml.nvmlDeviceGetMemoryInfo, card, pynvml.nvmlMemory_v2 + 1) == 25


def test_our_own_process_can_be_scripted(fake, card):
    fake.card(0, **{"proc.0": "self:5"})
    assert [(row.pid, row.usedGpuMemory) for row in pynvml.nvmlDeviceGetComputeRunningProcesses(card)] == [(os.getpid(), 5)]


def test_error_texts_are_known(fake, card):
    fake.fail("nvmlDeviceGetPowerUsage", 18)
    with pytest.raises(pynvml.NVMLError, match="mismatch"):
        pynvml.nvmlDeviceGetPowerUsage(card)


def test_a_process_without_a_state_finds_no_driver(fake):
    environment = fake.env()
    del environment["FAKE_NVML_STATE"]
    code = "import pynvml\ntry: pynvml.nvmlInit()\nexcept pynvml.NVMLError as err: print(err.value)"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "9"


def test_a_child_of_a_fork_can_ask_too(fake, card):
    code = (
        "import os, pynvml; pynvml.nvmlInit(); pid = os.fork()\n"
        "if not pid: print(pynvml.nvmlDeviceGetCount(), flush=True); os._exit(0)\n"
        "os.waitpid(pid, 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=fake.env(), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "2"


def test_it_is_compiled_once(fake):
    before = fake.library.stat().st_mtime_ns
    assert build() == fake.library
    assert fake.library.stat().st_mtime_ns == before


def test_a_library_of_a_test_stays_in_its_test(fake):
    """The loader must not hand the scripted library to whoever asks for the system's one later in this process."""
    fake.unload()
    assert pynvml.nvmlLib is None
    maps = subprocess.run(
        [sys.executable, "-c", _LATER.format(path=str(fake.library))], capture_output=True, text=True, check=True
    )
    assert maps.stdout.strip() in ("not found", "another one")


_LATER = """
import ctypes
mine = ctypes.CDLL({path!r})
try:
    other = ctypes.CDLL("libnvidia-ml.so.1")
except OSError:
    print("not found")
else:
    print("the same" if hasattr(other, "fake_nvml_calls") else "another one")
"""
