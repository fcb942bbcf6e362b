"""The sampler: readings of whose devices, backends that break their word, drivers that never answer."""

from __future__ import annotations

import threading
import time

import pytest

from trainbudget.clock import ManualClock, SystemClock
from trainbudget.errors import GpuUnavailableError
from trainbudget.events import Event, Gpu, Reading
from trainbudget.gpu.protocol import GpuIdentity
from trainbudget.live.sampler import STUCK_S, Sampler


class Backend:
    """Two cards; `answers` replaces what reading a card gives."""

    name, driver_version = "nvml", "1.0"

    def __init__(self, cards=2):
        self.identities = tuple(GpuIdentity(index=n, ordinal=n, uuid=f"GPU-{n}") for n in range(cards))
        self.answers, self.closed, self.reads = {}, 0, []

    def open(self):
        return tuple(Gpu(gpu=i.index, uuid=i.uuid) for i in self.identities)

    def read(self, gpu, *, now_s):
        self.reads.append(gpu)
        answer = self.answers.get(gpu)
        if isinstance(answer, Exception):
            raise answer
        return Reading(gpu=gpu, utilization_ratio=0.5) if answer is None else answer

    def events(self, now_s):
        return (Event(t_s=now_s, event="xid", detail={"gpu": 0, "xid": 79}), "garbage")

    def close(self):
        self.closed += 1


def sampler_of(backend, *, clock=None, rounds=3, **more):
    made = Sampler(lambda: backend, clock or SystemClock(), 0.0, period_s=0.01, **more)
    made.start()
    assert made.ready.wait(5.0)
    until = time.monotonic() + 5.0
    while len(getattr(backend, "reads", [])) < rounds and made.thread.is_alive() and time.monotonic() < until:
        time.sleep(0.005)
    made.stop()
    made.thread.join(5.0)
    return made


def readings(sampler):
    return [f for f in sampler.facts if isinstance(f, Reading)]


@pytest.fixture(autouse=True)
def _no_masks(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)


def test_own_and_spare_devices_are_announced_and_read():
    sampler = sampler_of(Backend(), rounds=4)
    announced = [(g.gpu, g.owned) for g in sampler.facts if isinstance(g, Gpu)]
    assert announced == [(0, True), (1, False)]
    assert {r.gpu for r in readings(sampler)} == {0, 1}
    assert all(r.t_s > 0.0 for r in readings(sampler))
    assert sampler.sample_s > 0.0


def test_a_rank_reads_its_own_device_only():
    backend = Backend()
    sampler_of(backend, rounds=3, local_rank=1, local_world_size=2)
    assert set(backend.reads) == {1}


def test_moments_of_a_backend_come_along_and_garbage_does_not():
    sampler = sampler_of(Backend())
    assert {f.event for f in sampler.facts if isinstance(f, Event)} == {"xid"}
    assert not [f for f in sampler.facts if isinstance(f, str)]


@pytest.mark.parametrize("answer", [RuntimeError("broken"), "garbage", object()])
def test_one_card_that_breaks_its_word_costs_its_own_readings_only(answer):
    backend = Backend()
    backend.answers[0] = answer
    sampler = sampler_of(backend, rounds=6)
    assert {r.gpu for r in readings(sampler)} == {1}
    assert sampler.errors["sampler"] >= 2  # tried again each round
    assert backend.closed == 1
    assert sampler.error is None


def test_a_card_that_comes_back_is_read_again():
    backend = Backend(cards=1)
    backend.answers[0] = RuntimeError("not now")
    real = backend.read

    def read(gpu, *, now_s):
        if len(backend.reads) >= 3:
            backend.answers.clear()
        return real(gpu, now_s=now_s)

    backend.read = read
    assert readings(sampler_of(backend, rounds=8))


@pytest.mark.parametrize(
    ("error", "code"),
    [(GpuUnavailableError("library_not_found", "no library"), "library_not_found"), (OSError("odd"), "unknown")],
)
def test_a_backend_that_does_not_open_is_said_why(error, code):
    backend = Backend()

    def fail():
        raise error

    backend.open = fail
    sampler = sampler_of(backend, rounds=0)
    assert sampler.error.code == code
    assert readings(sampler) == []


def test_no_device_and_no_backend_are_said():
    assert sampler_of(Backend(cards=0), rounds=0).error.code == "no_gpu"
    assert sampler_of(None, rounds=0).error.code == "none"


def test_a_call_that_does_not_return_makes_the_sampler_stuck():
    clock, backend, release = ManualClock(), Backend(cards=1), threading.Event()
    entered = threading.Event()

    def read(gpu, *, now_s):
        entered.set()
        release.wait(10.0)
        return Reading(gpu=gpu)

    backend.read = read
    sampler = Sampler(lambda: backend, clock, 0.0, period_s=1.0)
    sampler.start()
    assert entered.wait(5.0)
    assert not sampler.stuck
    clock.advance(STUCK_S + 1.0)
    assert sampler.stuck
    sampler.stop()
    release.set()
    sampler.thread.join(5.0)
    assert readings(sampler) == []  # what a replaced sampler still gets is nobody's


def test_torchs_own_order_decides_once_it_is_known():
    backend = Backend()
    sampler = Sampler(lambda: backend, SystemClock(), 0.0, period_s=0.01, local_rank=0, local_world_size=2)
    sampler.start()
    sampler.ready.wait(5.0)
    sampler.torch_uuids = ("GPU-1", "GPU-0")
    until = time.monotonic() + 5.0
    while sampler.mapping.owned != (1,) and time.monotonic() < until:
        time.sleep(0.005)
    sampler.stop()
    sampler.thread.join(5.0)
    assert tuple(sampler.mapping.owned) == (1,)


def test_a_system_without_threads_leaves_the_run_without_device_data(monkeypatch):
    def fail(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    sampler = Sampler(Backend, SystemClock(), 0.0, period_s=1.0)
    sampler.start()
    assert sampler.ready.is_set()
    assert "new thread" in sampler.error.text
