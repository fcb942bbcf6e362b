"""The real backend on the real pynvml, over a scripted library: what each query answers."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pynvml
import pytest

from native.build import implemented_functions, known_functions
from native.fake_nvml import GIB, MIB, FakeNvml, slice_uuid_of, uuid_of
from trainbudget.gpu import nvml
from trainbudget.gpu.nvml_backend import NvmlBackend
from trainbudget.gpu.protocol import ProcessInfo


@pytest.fixture
def fake(tmp_path):
    driver = FakeNvml(tmp_path, cards=2)
    driver.load()
    yield driver
    driver.unload()


@pytest.fixture
def backend(fake):
    opened = NvmlBackend(own_pid=7, pids_trusted=True)
    yield opened
    opened.close()


def test_the_facts_of_a_card(fake, backend):
    card, other = backend.open()
    assert (card.gpu, card.uuid, card.name) == (0, uuid_of(0), "NVIDIA A100-SXM4-80GB")
    assert (other.gpu, other.uuid) == (1, uuid_of(1))
    assert card.memory_total_bytes == 85_899_345_920
    assert card.memory_limit_bytes == 85_899_345_920 - 911_212_544
    assert card.memory_limit_source == "nvml_total_less_reserved"
    assert (card.power_limit_w, card.power_default_limit_w) == (400.0, 400.0)
    assert (card.pcie_gen_max, card.pcie_width_max) == (4, 16)
    assert card.compute_capability == "8.0"
    assert (card.mig, card.unified_memory) == (False, False)
    assert (card.owned, card.visible) == (None, None)
    assert backend.driver_version == "575.57.08"


def test_a_first_reading_has_everything_in_si_units(fake, backend):
    backend.open()
    reading = backend.read(0, now_s=12.5)
    assert (reading.t_s, reading.gpu) == (12.5, 0)
    assert (reading.utilization_ratio, reading.memory_utilization_ratio) == (0.97, 0.55)
    assert reading.memory_used_bytes == 20 * GIB
    assert reading.memory_reserved_bytes == 911_212_544
    assert reading.memory_free_bytes == 85_899_345_920 - 20 * GIB - 911_212_544
    assert reading.power_w == 312.345
    assert reading.temperature_c == 61.0
    assert reading.sm_clock_hz == 1410e6
    assert reading.energy_j == 5_000_000.0
    assert (reading.pcie_gen, reading.pcie_width) == (4, 16)
    assert (reading.ecc_corrected, reading.ecc_uncorrected) == (3.0, 0.0)
    assert reading.throttle == ["sw_power_cap"]
    assert reading.processes == []
    assert reading.errors == {"sm_active": 3}


def test_devices_are_read_by_index_and_by_uuid(fake, backend):
    backend.open()
    fake.card(1, util_gpu=12)
    assert backend.read(1, now_s=0.0).utilization_ratio == 0.12
    assert backend.read(uuid_of(1), now_s=1.0).gpu == 1


def test_a_device_that_never_was_is_the_callers_mistake(fake, backend):
    backend.open()
    with pytest.raises(LookupError):
        backend.read(2, now_s=0.0)


def test_opening_twice_asks_the_driver_once(fake, backend):
    assert backend.open() == backend.open()
    assert fake.calls("nvmlInitWithFlags") == 1


def test_closing_balances_the_initialisation(fake, backend):
    backend.open()
    backend.close()
    backend.close()
    assert fake.calls("nvmlShutdown") == 1
    assert backend.read(0, now_s=0.0).errors == {"init": 1}


def test_each_query_keeps_its_own_rate(fake, backend):
    """Process lists are the dearest call; none of the slow ones may creep into the rate of the fast ones."""
    backend.open()
    functions = {
        "nvmlDeviceGetUtilizationRates": 31,
        "nvmlDeviceGetPowerUsage": 31,
        "nvmlDeviceGetClockInfo": 7,
        "nvmlDeviceGetTemperature": 7,
        "nvmlDeviceGetFieldValues": 7,
        "nvmlDeviceGetCurrPcieLinkWidth": 4,
        "nvmlDeviceGetGraphicsRunningProcesses_v3": 4,
    }
    before = {name: fake.calls(name) for name in functions}
    for second in range(31):
        backend.read(0, now_s=second + (0.05 if second % 2 else -0.05))
    assert {name: fake.calls(name) - before[name] for name in functions} == functions


def test_one_call_answers_energy_and_both_ecc_counts(fake, backend):
    backend.open()
    backend.read(0, now_s=0.0)
    assert fake.calls("nvmlDeviceGetFieldValues") == 1
    assert fake.calls("nvmlDeviceGetTotalEnergyConsumption") == fake.calls("nvmlDeviceGetTotalEccErrors") == 0


def test_without_field_values_the_counters_are_asked_one_by_one(fake, backend):
    fake.fail("nvmlDeviceGetFieldValues", 13)
    backend.open()
    reading = backend.read(0, now_s=0.0)
    assert (reading.energy_j, reading.ecc_corrected, reading.ecc_uncorrected) == (5_000_000.0, 3.0, 0.0)
    assert reading.errors == {"sm_active": 3}
    assert backend.read(0, now_s=5.0).energy_j == 5_000_000.0
    assert fake.calls("nvmlDeviceGetFieldValues") == 1


def test_a_card_without_ecc_tells_its_energy(fake, backend):
    fake.without("ecc_corrected", "ecc_uncorrected")
    backend.open()
    reading = backend.read(0, now_s=0.0)
    assert reading.energy_j == 5_000_000.0
    assert reading.ecc_corrected is None
    assert reading.errors == {"sm_active": 3, "ecc": 3}
    assert backend.read(0, now_s=5.0).errors is None


def test_the_energy_counter_counts_on(fake, backend):
    backend.open()
    first = backend.read(0, now_s=0.0).energy_j
    fake.card(0, energy_mj=5_000_000_000 + 4_500_000)
    assert backend.read(0, now_s=5.0).energy_j - first == 4500.0


@pytest.mark.parametrize(
    ("bits", "names"),
    [
        (0x0, []),
        (0x1, ["gpu_idle"]),
        (0x2, ["applications_clocks_setting"]),
        (0x8, ["hw_slowdown"]),
        (0x10, ["sync_boost"]),
        (0x24, ["sw_power_cap", "sw_thermal_slowdown"]),
        (0x48, ["hw_slowdown", "hw_thermal_slowdown"]),
        (0x80, ["hw_power_brake_slowdown"]),
        (0x100, ["display_clocks_setting"]),
        (0x8000, []),
    ],
)
def test_throttle_bits_have_nvidia_smis_names(fake, backend, bits, names):
    fake.card(0, clock_reasons=hex(bits))
    backend.open()
    assert backend.read(0, now_s=0.0).throttle == names


def test_throttle_reasons_are_asked_by_their_old_name_too(fake, backend):
    fake.fail("nvmlDeviceGetCurrentClocksEventReasons", 13)
    backend.open()
    assert backend.read(0, now_s=0.0).throttle == ["sw_power_cap"]


def test_without_memory_v2_used_has_the_drivers_part_in_it(fake, backend):
    """Before R510, or with an old library: reserved memory is unknown then, not zero."""
    fake.fail("nvmlDeviceGetMemoryInfo_v2", 13)
    card = backend.open()[0]
    assert (card.memory_limit_bytes, card.memory_limit_source) == (85_899_345_920, "nvml_total")
    reading = backend.read(0, now_s=0.0)
    assert reading.memory_used_bytes == 20 * GIB + 911_212_544
    assert reading.memory_reserved_bytes is None
    assert reading.memory_free_bytes == 85_899_345_920 - 20 * GIB - 911_212_544
    assert reading.errors == {"memory_v2": 13, "sm_active": 3}
    assert backend.read(0, now_s=1.0).errors is None


def test_free_memory_is_the_same_either_way(fake, backend):
    backend.open()
    new = backend.read(0, now_s=0.0)
    fake.fail("nvmlDeviceGetMemoryInfo_v2", 3)
    other = NvmlBackend()
    other.open()
    old = other.read(0, now_s=0.0)
    other.close()
    assert old.memory_free_bytes == new.memory_free_bytes
    assert old.memory_used_bytes - new.memory_used_bytes == new.memory_reserved_bytes


def test_a_single_failure_of_memory_v2_is_no_reason_to_change_the_meaning_of_used(fake, backend):
    backend.open()
    backend.read(0, now_s=0.0)
    fake.fail("nvmlDeviceGetMemoryInfo_v2", 10)
    reading = backend.read(0, now_s=1.0)
    assert (reading.memory_used_bytes, reading.errors) == (None, {"memory_v2": 10})
    fake.fail("nvmlDeviceGetMemoryInfo_v2", 0)
    assert backend.read(0, now_s=2.0).memory_used_bytes == 20 * GIB


def test_a_card_without_memory_of_its_own_has_unified_memory(fake, backend):
    """GB10 and Jetson: memory is the host's, NVML refuses both queries."""
    fake.without("mem_total", "mem_used", "mem_reserved")
    card = backend.open()[0]
    assert (card.unified_memory, card.memory_total_bytes, card.memory_limit_bytes) == (True, None, None)
    reading = backend.read(0, now_s=0.0)
    assert reading.memory_used_bytes is None
    assert reading.errors["memory"] == 3
    assert reading.power_w == 312.345


def test_memory_that_fails_for_another_reason_is_not_unified(fake, backend):
    fake.fail("nvmlDeviceGetMemoryInfo", 10)
    fake.fail("nvmlDeviceGetMemoryInfo_v2", 10)
    assert backend.open()[0].unified_memory is None


def test_processes_are_told_with_what_the_host_knows_of_them(fake):
    fake.card(0, **{"proc.0": f"7:{20 * GIB}", "proc.1": f"8:{GIB}", "gproc.0": f"9:{100 * MIB}"})
    backend = NvmlBackend(
        own_pid=7, pids_trusted=True, process_info=lambda pid: ProcessInfo(alive=pid == 8, started_before_run=True)
    )
    backend.open()
    processes = backend.read(0, now_s=0.0).processes
    backend.close()
    assert [(p.pid, p.memory_bytes, p.own, p.alive, p.started_before_run) for p in processes] == [
        (7, 20 * GIB, True, True, False),
        (8, GIB, False, True, True),
        (9, 100 * MIB, False, False, True),
    ]


def test_a_process_whose_memory_is_not_available_stays_unknown(fake, backend):
    fake.card(0, **{"proc.0": "8:NA", "proc.1": "9:0"})
    backend.open()
    assert {p.pid: p.memory_bytes for p in backend.read(0, now_s=0.0).processes} == {8: None, 9: 0.0}


def test_a_row_with_more_memory_than_the_card_is_dropped(fake, backend):
    fake.card(0, **{"proc.0": f"8:{2**50}", "proc.1": "9:1"})
    backend.open()
    assert [p.pid for p in backend.read(0, now_s=0.0).processes] == [9]


def test_processes_are_asked_by_their_old_name_too(fake, backend):
    fake.card(0, **{"proc.0": "8:1"})
    fake.fail("nvmlDeviceGetComputeRunningProcesses_v3", 13)
    backend.open()
    reading = backend.read(0, now_s=0.0)
    if hasattr(pynvml, "nvmlDeviceGetComputeRunningProcesses_v2"):
        assert [p.pid for p in reading.processes] == [8]
    else:  # pynvml 12 knows the newest name only
        assert (reading.processes, reading.errors["processes"]) == (None, 13)


def test_pids_of_another_namespace_are_not_attributed(fake):
    fake.card(0, **{"proc.0": f"324:{70 * GIB}"})
    backend = NvmlBackend(own_pid=324, pids_trusted=False, process_info=lambda pid: ProcessInfo(alive=True))
    backend.open()
    row = backend.read(0, now_s=0.0).processes[0]
    backend.close()
    assert (row.pid, row.memory_bytes, row.own, row.alive) == (324, 70 * GIB, None, None)


def test_a_slice_is_a_device_with_its_own_limit(fake, backend):
    fake.split(0, slices=2, bytes_each=10 * GIB)
    gpus = backend.open()
    assert [(gpu.gpu, gpu.uuid, gpu.mig) for gpu in gpus] == [
        (0, uuid_of(0), True),
        (1, slice_uuid_of(0, 0), True),
        (2, slice_uuid_of(0, 1), True),
        (3, uuid_of(1), False),
    ]
    assert [gpu.memory_limit_bytes for gpu in gpus[:3]] == [None, 10 * GIB, 10 * GIB]
    identities = backend.identities
    assert [identity.kind for identity in identities] == ["mig_parent", "mig", "mig", "gpu"]
    assert (identities[2].parent_uuid, identities[2].gpu_instance, identities[2].compute_instance) == (uuid_of(0), 2, 0)
    assert [identity.ordinal for identity in identities] == [0, 0, 0, 1]


def test_a_slice_tells_its_memory_and_no_utilization(fake, backend):
    fake.split(0, slices=1, bytes_each=10 * GIB)
    fake.set({"0.mig.0.proc.0": f"7:{GIB}"})
    backend.open()
    reading = backend.read(slice_uuid_of(0, 0), now_s=0.0)
    assert reading.memory_used_bytes == GIB
    assert reading.utilization_ratio is None
    assert reading.errors["utilization"] == reading.errors["power"] == 3
    assert [p.own for p in reading.processes] == [True]
    second = backend.read(slice_uuid_of(0, 0), now_s=1.0)
    assert (second.errors, second.utilization_ratio, second.memory_used_bytes) == (None, None, GIB)


def test_a_split_card_tells_no_utilization_either(fake, backend):
    fake.split(0, slices=1, bytes_each=10 * GIB)
    backend.open()
    reading = backend.read(0, now_s=0.0)
    assert reading.utilization_ratio is None
    assert reading.power_w == 312.345


def test_shares_of_busy_sms_need_two_samples(fake, backend):
    fake.card(0, gpm=1, gpm_sm=71.5, gpm_tensor=38.25)
    backend.open()
    first = backend.read(0, now_s=0.0)
    assert (first.sm_active_ratio, first.errors) == (None, None)
    second = backend.read(0, now_s=5.0)
    assert (second.sm_active_ratio, second.tensor_active_ratio) == (0.715, 0.3825)


def test_a_metric_that_the_card_lacks_stays_unknown(fake, backend):
    fake.card(0, gpm=1, gpm_sm=71.5)
    backend.open()
    backend.read(0, now_s=0.0)
    second = backend.read(0, now_s=5.0)
    assert (second.sm_active_ratio, second.tensor_active_ratio) == (0.715, None)


def test_a_slice_has_its_own_shares(fake, backend):
    """On Hopper this is the only utilization that a MIG slice has."""
    fake.split(0, slices=2, bytes_each=10 * GIB)
    fake.set({"0.gpm": 1, "0.mig.1.gpm_sm": 20, "0.mig.0.gpm_sm": 90})
    backend.open()
    backend.read(2, now_s=0.0)
    assert backend.read(2, now_s=5.0).sm_active_ratio == 0.2


def test_every_gpm_sample_is_freed(fake, backend):
    fake.card(0, gpm=1, gpm_sm=71.5)
    backend.open()
    for second in range(20):
        backend.read(0, now_s=float(second * 5))
    fake.fail("nvmlGpmSampleGet", 10)
    backend.read(0, now_s=200.0)
    backend.close()
    assert fake.calls("nvmlGpmSampleAlloc") == fake.calls("nvmlGpmSampleFree") == 21


def test_an_xid_is_told_once_with_its_device(fake, backend):
    backend.open()
    assert backend.events(1.0) == ()
    fake.set({"xid_event": "1:1:79"})
    assert [(event.t_s, event.event, event.detail) for event in backend.events(2.0)] == [(2.0, "xid", {"gpu": 1, "xid": 79})]
    assert backend.events(3.0) == ()


def test_a_driver_without_events_tells_none(fake, backend):
    fake.fail("nvmlEventSetCreate", 3)
    backend.open()
    fake.set({"xid_event": "1:1:79"})
    assert backend.events(1.0) == ()


@pytest.mark.parametrize(
    ("key", "value", "field"),
    [("util_gpu", 255, "utilization_ratio"), ("power_mw", 0xFFFFFFFF, "power_w"), ("temp", 511, "temperature_c")],
)
def test_a_glitch_is_unknown(fake, backend, key, value, field):
    fake.card(0, **{key: value})
    backend.open()
    assert getattr(backend.read(0, now_s=0.0), field) is None


def test_a_subprocess_finds_the_library_like_any_other(fake):
    code = (
        "from trainbudget.gpu import open_backend; b = open_backend('auto');"
        "print([g.uuid for g in b.open()], b.read(1, now_s=0.0).power_w)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=fake.env(), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{[uuid_of(0), uuid_of(1)]} 312.345"


def called_functions() -> set[str]:
    """C functions behind every pynvml name in our backend, pynvml's own detours included."""
    tree = ast.parse(inspect.getsource(nvml))
    names = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "pynvml"
    }
    functions = [name for name in names if callable(getattr(pynvml, name)) and name.startswith("nvml")]
    assert len(functions) > 30
    source = Path(pynvml.__file__).read_text(encoding="utf-8")
    bodies = dict(re.findall(r"^def (nvml\w+)\(.*?\n((?:[ \t].*\n|\n)+)", source, re.M))
    found: set[str] = set()
    while functions:
        body = bodies[functions.pop()]
        found |= set(re.findall(r'_nvmlGetFunctionPointer\("(\w+)"\)', body))
        functions += [name for name in re.findall(r"\b(nvml\w+)\(", body) if name in bodies]
    return found


def test_every_function_that_the_backend_calls_is_really_answered():
    called = called_functions()
    assert {"nvmlInitWithFlags", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetComputeRunningProcesses_v3"} <= called
    assert called - implemented_functions() == set()


def test_every_function_that_pynvml_knows_is_in_the_library(fake):
    library = pynvml.nvmlLib
    assert len(known_functions()) > 250
    assert [name for name in sorted(known_functions()) if not hasattr(library, name)] == []
