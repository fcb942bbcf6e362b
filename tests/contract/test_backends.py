"""What every source of device readings promises, whatever is behind it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from native.fake_nvml import GIB, FakeNvml
from trainbudget.events import Event, Gpu, Header, Reading, Step
from trainbudget.gpu.mock import SCENARIOS, MockBackend
from trainbudget.gpu.nvml_backend import NvmlBackend
from trainbudget.gpu.protocol import QUERIES, AllocatorSource, EventSource, GpuBackend
from trainbudget.gpu.recorded import RecordedBackend
from trainbudget.trace import read_trace, write_trace

THROTTLE = {
    "gpu_idle",
    "applications_clocks_setting",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "display_clocks_setting",
}
RATIOS = ("utilization_ratio", "memory_utilization_ratio", "sm_active_ratio", "tensor_active_ratio")
COUNTERS = ("energy_j", "ecc_corrected", "ecc_uncorrected")


@dataclasses.dataclass
class Source:
    """An opened backend and a way to let it live for a second."""

    backend: GpuBackend
    gpus: tuple[Gpu, ...]
    live: Callable[[int], None] = lambda second: None
    closes: bool = False  # whether closing makes it silent

    def readings(self, seconds: int = 60) -> list[Reading]:
        found = []
        for second in range(seconds):
            self.live(second)
            found += [self.backend.read(gpu.gpu, now_s=float(second)) for gpu in self.gpus]
        return found


def _mock(scenario: str) -> Source:
    backend = MockBackend(scenario, gpus=2, local_world_size=1, own_pid=7, story_steps=120)
    backend.observe(Event(event="train_begin"))

    def live(second: int) -> None:
        for quarter in range(4):
            end_s = second + quarter / 4
            step = second * 4 + quarter + 1
            backend.observe(Step(t_s=end_s, step=step, start_s=end_s - 0.25, data_wait_s=0.0, max_sequence_tokens=128.0))

    return Source(backend, backend.open(), live=live)


def _recorded(folder: Path) -> Source:
    played = _mock("neighbour")
    path = folder / "trace.jsonl"
    write_trace(path, [Header(backend="mock"), *played.gpus, *played.readings(), *played.backend.allocator(60.0)])
    backend = RecordedBackend(path)
    return Source(backend, backend.open())


def _nvml(fake: FakeNvml, kind: str) -> Source:
    if kind == "split":
        fake.split(0, slices=2, bytes_each=10 * GIB)
    elif kind == "refusing":
        fake.without("util_gpu", "power_mw", "clock_sm", "ecc_corrected")
        fake.fail("nvmlDeviceGetMemoryInfo_v2", 13)
    elif kind == "full":
        fake.card(0, gpm=1, gpm_sm=50, gpm_tensor=30, **{"proc.0": f"7:{GIB}", "proc.1": "8:NA"})
    backend = NvmlBackend(own_pid=7, pids_trusted=True)
    gpus = backend.open()

    def live(second: int) -> None:
        fake.card(0, energy_mj=5_000_000_000 + second * 300_000)
        if kind == "losing" and second == 30:
            fake.fail("*", 15, card=0)

    return Source(backend, gpus, live=live, closes=True)


NVML = ("full", "split", "refusing", "losing")


@pytest.fixture(params=[*(f"mock:{name}" for name in SCENARIOS), "recorded", *(f"nvml:{kind}" for kind in NVML)])
def source(request, tmp_path) -> Iterator[Source]:
    kind, _, detail = request.param.partition(":")
    if kind != "nvml":
        yield _mock(detail) if kind == "mock" else _recorded(tmp_path)
        return
    fake = FakeNvml(tmp_path, cards=2)
    fake.load()
    opened = _nvml(fake, detail)
    yield opened
    opened.backend.close()
    fake.unload()


def test_devices_have_their_index_and_no_owner_yet(source):
    assert [gpu.gpu for gpu in source.gpus] == list(range(len(source.gpus)))
    assert all(gpu.uuid and gpu.name for gpu in source.gpus)
    assert all((gpu.owned, gpu.visible) == (None, None) for gpu in source.gpus)
    assert len({gpu.uuid for gpu in source.gpus}) == len(source.gpus)


def test_identities_are_those_of_the_devices(source):
    assert [(identity.index, identity.uuid) for identity in source.backend.identities] == [
        (gpu.gpu, gpu.uuid) for gpu in source.gpus
    ]


def test_opening_again_gives_the_same_devices(source):
    assert source.backend.open() == source.gpus


def test_a_limit_is_no_larger_than_the_card(source):
    for gpu in source.gpus:
        if gpu.memory_limit_bytes is not None:
            assert 0 < gpu.memory_limit_bytes <= gpu.memory_total_bytes
            assert gpu.memory_limit_source


def test_index_and_uuid_are_the_same_device(source):
    for gpu in source.gpus:
        assert source.backend.read(gpu.uuid, now_s=0.0).gpu == source.backend.read(gpu.gpu, now_s=0.1).gpu == gpu.gpu


@pytest.mark.parametrize("unknown", [99, -1, "GPU-nobody", None])
def test_an_unknown_device_is_the_callers_mistake(source, unknown):
    with pytest.raises(LookupError):
        source.backend.read(unknown, now_s=0.0)


def test_a_reading_has_the_callers_time(source):
    assert [reading.t_s for reading in source.readings(5)] == [t for t in range(5) for _ in source.gpus]


def test_there_is_something_to_read(source):
    known = [reading for reading in source.readings() if reading.memory_used_bytes is not None]
    assert len(known) > 20


def test_ratios_are_shares(source):
    for reading in source.readings():
        for name in RATIOS:
            value = getattr(reading, name)
            assert value is None or 0.0 <= value <= 1.0


def test_numbers_are_finite_and_of_a_plausible_size(source):
    for reading in source.readings():
        for name in reading.__struct_fields__:
            value = getattr(reading, name)
            assert not isinstance(value, float) or math.isfinite(value)
        assert reading.power_w is None or 10 < reading.power_w < 1500
        assert reading.sm_clock_hz is None or 1e8 < reading.sm_clock_hz < 4e9
        assert reading.temperature_c is None or 10 < reading.temperature_c < 120


def test_used_memory_is_on_the_card(source):
    totals = {gpu.gpu: gpu.memory_total_bytes for gpu in source.gpus}
    for reading in source.readings():
        if reading.memory_used_bytes is not None:
            parts = reading.memory_used_bytes + reading.memory_free_bytes + (reading.memory_reserved_bytes or 0.0)
            assert parts == pytest.approx(totals[reading.gpu], abs=4)


def test_counters_never_fall(source):
    last: dict[tuple[int, str], float] = {}
    for reading in source.readings():
        for name in COUNTERS:
            value = getattr(reading, name)
            if value is not None:
                assert value >= last.get((reading.gpu, name), 0.0)
                last[reading.gpu, name] = value


def test_throttle_reasons_and_queries_have_the_formats_names(source):
    for reading in source.readings():
        assert set(reading.throttle or ()) <= THROTTLE
        assert set(reading.errors or ()) <= set(QUERIES)
        assert all(isinstance(code, int) and code > 0 for code in (reading.errors or {}).values())


FIELD_OF = {
    "utilization": "utilization_ratio",
    "power": "power_w",
    "temperature": "temperature_c",
    "clock": "sm_clock_hz",
    "energy": "energy_j",
    "processes": "processes",
    "pcie": "pcie_gen",
    "ecc": "ecc_corrected",
    "sm_active": "sm_active_ratio",
}


def test_a_query_that_failed_has_no_value(source):
    for reading in source.readings():
        for query in reading.errors or ():
            assert getattr(reading, FIELD_OF.get(query, "context_bytes")) is None


def test_a_refused_query_is_reported_once_and_absent_for_ever(source):
    refused: set[tuple[int, str]] = set()
    for reading in source.readings():
        for query, code in (reading.errors or {}).items():
            assert (reading.gpu, query) not in refused
            if code in (3, 4, 13):
                refused.add((reading.gpu, query))
        for gpu, query in refused:
            assert gpu != reading.gpu or getattr(reading, FIELD_OF.get(query, "context_bytes")) is None


def test_a_lost_device_says_nothing_else(source):
    for reading in source.readings():
        if 15 in (reading.errors or {}).values():
            assert reading == Reading(t_s=reading.t_s, gpu=reading.gpu, errors=reading.errors)


def test_one_process_at_most_is_our_own(source):
    for reading in source.readings():
        own = [process for process in reading.processes or [] if process.own]
        assert [process.pid for process in own] in ([], [7])


def test_readings_survive_the_trace_format(source, tmp_path):
    readings = source.readings(12)
    path = tmp_path / "again.jsonl"
    write_trace(path, [Header(), *source.gpus, *readings])
    assert list(read_trace(path))[1:] == [*source.gpus, *readings]


def test_allocator_facts_and_moments_come_once(source):
    source.readings(12)
    if isinstance(source.backend, AllocatorSource):
        source.backend.allocator(12.0)
        assert source.backend.allocator(12.0) == ()
    if isinstance(source.backend, EventSource):
        source.backend.events(12.0)
        assert source.backend.events(12.0) == ()


def test_closing_twice_is_fine(source):
    source.backend.close()
    source.backend.close()
    reading = source.backend.read(0, now_s=100.0)
    if source.closes:
        assert reading.errors == {"init": 1}
