"""The real backend on the real pynvml when the driver refuses, lies, hangs, loses devices or is replaced."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pynvml
import pytest

from integration.test_nvml_stub import called_functions
from native.fake_nvml import GIB, FakeNvml, uuid_of
from trainbudget.errors import GpuUnavailableError
from trainbudget.gpu.nvml_backend import NvmlBackend

TELEMETRY = (
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetCurrPcieLinkGeneration",
)
QUERY_OF = dict(zip(TELEMETRY, ("utilization", "power", "clock", "temperature", "processes", "pcie"), strict=True))


@pytest.fixture
def fake(tmp_path):
    driver = FakeNvml(tmp_path, cards=2)
    driver.card(0, gpm=1, gpm_sm=71.5, gpm_tensor=38.25)
    driver.load()
    yield driver
    driver.unload()


@pytest.fixture
def backend(fake):
    opened = NvmlBackend(own_pid=7, pids_trusted=True)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("code", "word"),
    [
        (2, "unknown"),
        (4, "permission"),
        (8, "unknown"),
        (9, "unknown"),
        (12, "library_not_found"),
        (13, "driver_mismatch"),
        (15, "unknown"),
        (17, "permission"),
        (18, "driver_mismatch"),
        (20, "unknown"),
        (999, "unknown"),
        (4711, "unknown"),
    ],
)
def test_a_failed_start_says_why(fake, backend, code, word):
    fake.fail("nvmlInitWithFlags", code)
    with pytest.raises(GpuUnavailableError) as caught:
        backend.open()
    assert caught.value.code == word
    assert f"code {code}" in str(caught.value)
    fake.fail("nvmlInitWithFlags", 0)
    assert len(backend.open()) == 2


def test_without_a_library_that_is_said():
    code = (
        "from trainbudget.gpu import open_backend\nfrom trainbudget.errors import GpuUnavailableError\n"
        "try: open_backend('auto').open()\nexcept GpuUnavailableError as err: print(err.code)"
    )
    done = subprocess.run([sys.executable, "-c", code], env={"LD_LIBRARY_PATH": ""}, capture_output=True, text=True, check=True)
    if done.stdout.strip() != "library_not_found":
        pytest.skip("this machine has an NVIDIA driver")


def test_a_failed_count_gives_the_driver_back(fake, backend):
    fake.fail("nvmlDeviceGetCount_v2", 999)
    with pytest.raises(GpuUnavailableError):
        backend.open()
    assert fake.calls("nvmlInitWithFlags") == fake.calls("nvmlShutdown") == 1


def test_a_driver_without_devices_is_no_failure(fake, backend):
    fake.set({"device_count": 0})
    assert backend.open() == ()


def test_a_card_that_a_container_hides_is_left_out(fake, backend):
    fake.fail("nvmlDeviceGetHandleByIndex_v2", 4, card=0)
    assert [gpu.uuid for gpu in backend.open()] == [uuid_of(1)]
    assert backend.identities[0].ordinal == 1


def test_a_card_that_is_lost_at_the_start_is_kept_and_comes_back(fake, backend):
    fake.fail("*", 15, card=0)
    gpus = backend.open()
    assert [gpu.uuid for gpu in gpus] == [None, uuid_of(1)]
    reading = backend.read(0, now_s=0.0)
    assert reading.errors["handle"] == reading.errors["utilization"] == 15
    assert backend.read(1, now_s=0.0).utilization_ratio == 0.97
    fake.fail("*", 0, card=0)
    assert backend.read(0, now_s=10.0).utilization_ratio == 0.97


@pytest.mark.parametrize("function", TELEMETRY)
@pytest.mark.parametrize("code", [3, 4, 13])
def test_a_refused_query_is_told_once_and_never_asked_again(fake, backend, function, code):
    fake.fail(function, code)
    fake.fail("nvmlDeviceGetComputeRunningProcesses_v2", 13)
    backend.open()
    assert backend.read(0, now_s=0.0).errors == {QUERY_OF[function]: code}
    asked = fake.calls(function)
    later = [backend.read(0, now_s=float(second)) for second in range(1, 40)]
    assert [reading.errors for reading in later] == [None] * 39
    assert fake.calls(function) == asked
    # For this device only: another one may be of another kind.
    assert backend.read(1, now_s=0.0).errors == {"sm_active": 3, QUERY_OF[function]: code}


@pytest.mark.parametrize("function", TELEMETRY)
@pytest.mark.parametrize("code", [1, 2, 6, 10, 20, 25, 999])
def test_a_query_that_fails_for_now_is_asked_again(fake, backend, function, code):
    backend.open()
    backend.read(0, now_s=0.0)
    fake.fail(function, code)
    for second in (10.0, 20.0, 30.0, 40.0, 50.0):
        assert backend.read(0, now_s=second).errors == {QUERY_OF[function]: code}
    fake.fail(function, 0)
    asked = fake.calls(function)
    assert backend.read(0, now_s=60.0).errors is None
    assert fake.calls(function) > asked


def test_counters_that_fail_for_now_are_asked_again(fake, backend):
    backend.open()
    backend.read(0, now_s=0.0)
    fake.fail("nvmlDeviceGetFieldValues", 999)
    for second in (10.0, 20.0, 30.0, 40.0):
        assert backend.read(0, now_s=second).errors == {"energy": 999, "ecc": 999}
    fake.fail("nvmlDeviceGetFieldValues", 0)
    reading = backend.read(0, now_s=50.0)
    assert (reading.energy_j, reading.ecc_corrected, reading.errors) == (5_000_000.0, 3.0, None)


def test_unknown_errors_of_a_query_that_never_worked_are_taken_for_a_refusal(fake, backend):
    """WSL answers 999 to utilization where it means "not supported": no error every second for days."""
    fake.fail("nvmlDeviceGetUtilizationRates", 999)
    fake.fail("nvmlDeviceGetMemoryInfo_v2", 999)
    backend.open()
    readings = [backend.read(0, now_s=float(second)) for second in range(600)]
    assert sum(reading.errors is not None for reading in readings) == 3
    assert readings[0].errors == {"memory_v2": 999, "utilization": 999}
    assert all(reading.memory_used_bytes == 20 * GIB + 911_212_544 for reading in readings)
    assert fake.calls("nvmlDeviceGetUtilizationRates") == 3


@pytest.mark.parametrize("code", [15, 16, 28])
def test_a_card_lost_in_mid_run_says_so_while_the_other_one_answers(fake, backend, code):
    backend.open()
    assert backend.read(0, now_s=0.0).errors is None
    fake.fail("*", code, card=0)
    lost = [backend.read(0, now_s=float(second)) for second in range(1, 21)]
    assert lost[0].errors == dict.fromkeys(("memory_v2", "utilization", "power"), code)
    assert "handle" in lost[1].errors
    assert set(lost[9].errors) >= {"clock", "temperature", "energy", "ecc", "processes", "pcie", "sm_active"}
    assert {value for reading in lost for value in reading.errors.values()} == {code}
    assert all(reading.utilization_ratio is None and reading.memory_used_bytes is None for reading in lost)
    assert all(backend.read(1, now_s=float(second)).utilization_ratio == 0.97 for second in range(1, 21))


def test_a_lost_card_is_asked_as_little_as_can_be(fake, backend):
    backend.open()
    fake.fail("*", 15, card=0)
    for second in range(10):
        backend.read(0, now_s=float(second))
    # The first query of each reading tells that the card is gone; opening asked once more for its facts.
    assert fake.calls("nvmlDeviceGetUtilizationRates") == 0
    assert fake.calls("nvmlDeviceGetPowerUsage") == 0


def test_a_container_whose_devices_were_taken_away_answers_999_everywhere(fake, backend):
    """`systemctl daemon-reload` rewrites a container's device list: handles stay, every query fails."""
    backend.open()
    backend.read(0, now_s=0.0)
    fake.fail("*", 999, card=0)
    readings = [backend.read(0, now_s=float(second)) for second in range(1, 61)]
    assert all(set(reading.errors.values()) == {999} for reading in readings)
    assert all({"utilization", "power", "memory_v2"} <= set(reading.errors) for reading in readings)
    fake.fail("*", 0, card=0)
    assert backend.read(0, now_s=70.0).utilization_ratio == 0.97


def test_999_from_the_first_moment_takes_no_query_for_refused(fake, backend):
    """The device as a whole is silent: when it comes back, every query is asked again."""
    backend.open()
    fake.fail("*", 999, card=0)
    for second in range(10):
        backend.read(0, now_s=float(second))
    fake.fail("*", 0, card=0)
    back = backend.read(0, now_s=20.0)
    assert (back.utilization_ratio, back.power_w, back.energy_j) == (0.97, 312.345, 5_000_000.0)


def test_an_updated_driver_refuses_a_new_start_and_leaves_the_old_one_alone(fake, backend):
    """An unattended upgrade swaps the library: whoever has it open goes on, every new initialisation fails with 18."""
    backend.open()
    backend.read(0, now_s=0.0)
    fake.fail("nvmlInitWithFlags", 18)
    assert backend.reinit() == 18
    assert backend.read(0, now_s=1.0).utilization_ratio == 0.97


def test_a_new_start_gives_fresh_handles_and_balances_the_old_one(fake, backend):
    backend.open()
    assert backend.reinit() is None
    assert backend.read(0, now_s=1.0).utilization_ratio == 0.97
    assert (fake.calls("nvmlInitWithFlags"), fake.calls("nvmlShutdown")) == (2, 1)


def test_a_new_start_after_every_device_was_lost_is_a_real_one(fake, backend):
    backend.open()
    for card in (0, 1):
        fake.fail("*", 999, card=card)
        backend.read(card, now_s=1.0)
    fake.fail("nvmlInitWithFlags", 999)
    assert backend.reinit() == 999
    assert fake.calls("nvmlShutdown") == 1
    assert backend.read(0, now_s=2.0).errors["utilization"] == 999
    for card in (0, 1):
        fake.fail("*", 0, card=card)
    assert backend.read(0, now_s=3.0).errors["init"] == 999
    fake.fail("nvmlInitWithFlags", 0)
    assert backend.read(0, now_s=10.0).errors["init"] == 999  # not tried every second: a start may block
    backend.read(0, now_s=40.0)
    assert backend.read(0, now_s=50.0).utilization_ratio == 0.97
    fake.set({"xid_event": "1:0:79"})
    assert len(backend.events(51.0)) == 1


def test_a_real_new_start_lets_go_of_what_belonged_to_the_old_one(fake, backend):
    backend.open()
    backend.read(0, now_s=0.0)
    for card in (0, 1):
        fake.fail("*", 999, card=card)
        backend.read(card, now_s=1.0)
    assert backend.reinit() is None
    assert fake.calls("nvmlGpmSampleAlloc") == fake.calls("nvmlGpmSampleFree") == 1


def test_nvml_shut_down_by_somebody_else_is_started_again(fake, backend):
    backend.open()
    backend.read(0, now_s=0.0)
    pynvml.nvmlShutdown()
    assert backend.read(0, now_s=1.0).errors["utilization"] == 1
    assert backend.read(0, now_s=2.0).utilization_ratio == 0.97


def test_a_slow_query_takes_its_time_and_answers(fake, backend):
    backend.open()
    fake.delay("nvmlDeviceGetPowerUsage", 150, card=0)
    begin_s = time.perf_counter()
    assert backend.read(0, now_s=0.0).power_w == 312.345
    assert time.perf_counter() - begin_s >= 0.15


@pytest.mark.parametrize("function", [*TELEMETRY, "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetFieldValues", "nvmlGpmSampleGet"])
def test_a_query_that_hangs_holds_its_own_thread_only(fake, backend, function):
    """The caller puts `read` on a thread of its own; another device must still be readable meanwhile."""
    backend.open()
    fake.delay(function, 400, card=0)
    answers = []
    stuck = threading.Thread(target=lambda: answers.append(backend.read(0, now_s=0.0)), daemon=True)
    stuck.start()
    assert backend.read(1, now_s=0.0).utilization_ratio == 0.97
    assert stuck.is_alive()
    stuck.join()
    assert (answers[0].utilization_ratio, answers[0].power_w, answers[0].errors) == (0.97, 312.345, None)


class Garbage:
    """Answers every attribute with something that is no number."""

    def __getattr__(self, name):
        return "garbage"


FUNCTIONS = sorted(
    name for name in vars(pynvml) if name.startswith(("nvmlDevice", "nvmlGpm", "nvmlEvent", "nvmlSystem", "nvmlShutdown"))
)


def python_functions() -> list[str]:
    """pynvml's functions behind the C ones that the backend needs."""
    called = called_functions()
    bare = {name.removesuffix("_v2").removesuffix("_v3") for name in called}
    return [name for name in FUNCTIONS if name in called | bare]


@pytest.mark.parametrize("function", python_functions())
@pytest.mark.parametrize("fault", ["raise", "none", "garbage", "text", "huge"])
def test_no_fault_of_a_single_call_gets_out_of_a_reading(fake, backend, monkeypatch, function, fault):
    def faulty(*args, **kwargs):
        if fault == "raise":
            raise OSError("a broken driver")
        return {"none": None, "garbage": Garbage(), "text": "x", "huge": 2**64 - 1}[fault]

    backend.open()
    backend.read(0, now_s=0.0)
    monkeypatch.setattr(pynvml, function, faulty)
    for second in (10.0, 20.0, 30.0):
        reading = backend.read(0, now_s=second)
        assert reading.gpu == 0
        assert all(isinstance(code, int) for code in (reading.errors or {}).values())
        assert reading.utilization_ratio in (None, 0.97)
        assert reading.power_w in (None, 312.345)
        assert isinstance(backend.events(second), tuple)
    backend.reinit()
    backend.close()


@pytest.mark.parametrize("function", python_functions())
@pytest.mark.parametrize("fault", ["raise", "none", "garbage"])
def test_no_fault_of_a_single_call_gets_out_of_a_start(fake, backend, monkeypatch, function, fault):
    def faulty(*args, **kwargs):
        if fault == "raise":
            raise OSError("a broken driver")
        return None if fault == "none" else Garbage()

    monkeypatch.setattr(pynvml, function, faulty)
    try:
        gpus = backend.open()
    except GpuUnavailableError:
        return
    for gpu in gpus:
        backend.read(gpu.gpu, now_s=0.0)


@pytest.mark.parametrize("function", sorted(called_functions() - {"nvmlErrorString", "nvmlGpmSampleFree", "nvmlEventSetFree"}))
@pytest.mark.parametrize("code", [1, 3, 15, 999])
def test_any_code_of_any_function_leaves_reading_and_start_intact(fake, backend, function, code):
    backend.open()
    backend.read(0, now_s=0.0)
    fake.fail(function, code)
    for second in (10.0, 20.0):
        assert backend.read(0, now_s=second).gpu == 0
    backend.events(21.0)
    backend.reinit()
    backend.close()
    fake.load()  # a new process, so to speak
    fresh = NvmlBackend()
    try:
        for gpu in fresh.open():
            fresh.read(gpu.gpu, now_s=0.0)
    except GpuUnavailableError:
        assert function in ("nvmlInitWithFlags", "nvmlDeviceGetCount_v2")
    fresh.close()
