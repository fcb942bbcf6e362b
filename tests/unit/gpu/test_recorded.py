"""A trace's readings, played again."""

from __future__ import annotations

import pytest

from trainbudget.errors import ConfigError
from trainbudget.events import Allocator, Event, Gpu, Header, Reading, Step
from trainbudget.gpu.recorded import RecordedBackend
from trainbudget.trace import write_trace

FACTS = (
    Header(backend="nvml", driver_version="575.57.08"),
    Gpu(gpu=0, uuid="GPU-a", name="A", owned=True),
    Gpu(gpu=1, uuid="GPU-b", name="B"),
    Reading(gpu=0, t_s=5.0, power_w=100.0),
    Reading(gpu=1, t_s=5.1, power_w=50.0),
    Allocator(gpu=0, t_s=5.2, reserved_bytes=1.0),
    Step(t_s=5.5, step=1),
    Reading(gpu=0, t_s=6.0, power_w=200.0, errors={"ecc": 3}),
    Event(t_s=6.5, event="xid", detail={"gpu": 0, "xid": 79}),
    Reading(gpu=0, t_s=7.0, power_w=300.0),
)


@pytest.fixture
def recorded(tmp_path):
    path = tmp_path / "trace.jsonl"
    write_trace(path, FACTS)
    backend = RecordedBackend(path)
    backend.open()
    return backend


def test_devices_come_back_without_their_old_owner(recorded):
    assert [(gpu.uuid, gpu.owned) for gpu in recorded.open()] == [("GPU-a", None), ("GPU-b", None)]
    assert recorded.driver_version == "575.57.08"
    assert [identity.uuid for identity in recorded.identities] == ["GPU-a", "GPU-b"]


def test_the_recorded_runs_own_devices_are_told(recorded):
    assert recorded.framework_uuids == ("GPU-a", "GPU-b")
    assert recorded.used_ordinals == (0,)


def test_readings_come_at_the_speed_of_the_recording(recorded):
    assert [recorded.read(0, now_s=t).power_w for t in (100.0, 101.0, 102.0)] == [100.0, 200.0, 300.0]


def test_a_reading_has_the_time_of_the_player(recorded):
    assert recorded.read(0, now_s=100.0).t_s == 100.0


def test_errors_are_played_too(recorded):
    recorded.read(0, now_s=100.0)
    assert recorded.read(0, now_s=101.0).errors == {"ecc": 3}


def test_between_readings_nothing_is_known(recorded):
    recorded.read(0, now_s=100.0)
    assert recorded.read(0, now_s=100.5).power_w is None


def test_after_the_last_reading_nothing_is_known(recorded):
    recorded.read(0, now_s=100.0)
    recorded.read(0, now_s=102.0)
    assert recorded.read(0, now_s=500.0) == Reading(gpu=0, t_s=500.0)


def test_a_slow_player_skips_to_the_latest(recorded):
    recorded.read(0, now_s=100.0)
    assert recorded.read(0, now_s=102.5).power_w == 300.0


def test_devices_are_found_by_uuid(recorded):
    recorded.read("GPU-a", now_s=100.0)
    assert recorded.read("GPU-b", now_s=100.2).power_w == 50.0


def test_allocator_and_xid_are_played_once(recorded):
    recorded.read(0, now_s=100.0)
    assert [fact.t_s for fact in recorded.allocator(101.0)] == [pytest.approx(100.2)]
    assert recorded.allocator(101.0) == ()
    assert recorded.events(101.0) == ()
    assert [fact.detail["xid"] for fact in recorded.events(102.0)] == [79]
    assert recorded.events(103.0) == ()


def test_devices_that_were_never_described_are_known_by_their_readings(tmp_path):
    path = tmp_path / "t.jsonl"
    write_trace(path, [Header(), Reading(gpu=3, t_s=0.0, power_w=1.0)])
    assert [gpu.gpu for gpu in RecordedBackend(path).open()] == [3]


@pytest.mark.parametrize("facts", [[], [Header(), Step(step=1)]], ids=["empty", "no readings"])
def test_a_trace_without_readings_is_refused(tmp_path, facts):
    path = tmp_path / "t.jsonl"
    write_trace(path, facts)
    with pytest.raises(ConfigError):
        RecordedBackend(path).open()
