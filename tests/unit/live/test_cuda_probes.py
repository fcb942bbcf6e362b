"""The CUDA probes at torch's API boundary: the step clock and the allocator, without a GPU."""

from __future__ import annotations

import sys

import pytest

from trainbudget.clock import ManualClock
from trainbudget.events import Step
from trainbudget.live.counters import Counters
from trainbudget.live.intake import RELEASE_S, Intake, TimedStep
from trainbudget.live.probes.step_clock import CudaStepClock
from trainbudget.live.probes.torch_memory import allocator_fact, torch_cuda, torch_uuids, used_ordinals
from trainbudget.live.queue import FactQueue
from trainbudget.live.sampler import Sampler
from trainbudget.monitor import Monitor
from unit.live.fake_cuda import FakeCuda, fake_torch


@pytest.fixture
def cuda(monkeypatch):
    fake = FakeCuda()
    monkeypatch.setitem(sys.modules, "torch", fake_torch(fake))
    return fake


def a_step(clock, cuda, *, before_ms=0.0, inside_ms=10.0):
    cuda.stream_ms += before_ms
    clock.begin()
    cuda.stream_ms += inside_ms
    return clock.end()


def test_a_step_is_timed_by_two_records_and_no_wait(cuda):
    marks = a_step(CudaStepClock(), cuda, inside_ms=12.5)
    assert marks.done
    assert marks.busy_s() == pytest.approx(0.0125)
    assert cuda.calls["record"] == 2
    assert cuda.calls["query"] <= 2


def test_idle_time_before_a_step_is_since_the_last_ones_end(cuda):
    clock = CudaStepClock()
    assert a_step(clock, cuda).idle_before_s() is None
    assert a_step(clock, cuda, before_ms=30.0).idle_before_s() == pytest.approx(0.030)


def test_nothing_is_recorded_during_graph_capture(cuda):
    cuda.capturing = True
    assert a_step(CudaStepClock(), cuda) is None
    assert cuda.calls["record"] == 0


def test_nothing_happens_before_cuda_is_up_or_without_torch(cuda, monkeypatch):
    cuda.initialized = False
    assert torch_cuda() is None
    assert a_step(CudaStepClock(), cuda) is None
    monkeypatch.delitem(sys.modules, "torch")
    assert torch_cuda() is None
    assert "torch" not in sys.modules  # looking does not import it


def test_an_error_switches_the_clock_off_for_good(cuda):
    clock = CudaStepClock()
    cuda.raising["record"] = RuntimeError("CUDA error: an illegal memory access was encountered")
    assert a_step(clock, cuda) is None
    assert "illegal memory access" in clock.failed
    del cuda.raising["record"]
    assert a_step(clock, cuda) is None


def test_a_clock_that_starts_within_a_step_knows_no_beginning(cuda):
    marks = CudaStepClock().end()
    assert marks.done
    assert (marks.busy_s(), marks.idle_before_s()) == (None, None)


def test_dropping_lets_go_of_the_events(cuda):
    clock = CudaStepClock()
    a_step(clock, cuda)
    clock.drop()
    assert a_step(clock, cuda, before_ms=30.0).idle_before_s() is None


# --- release of steps


@pytest.fixture
def intake():
    clock = ManualClock()
    queue = FactQueue()
    made = Intake(
        queue=queue,
        make_sampler=lambda: Sampler(lambda: None, clock, 0.0, period_s=1.0),
        workers=lambda: None,
        clock=clock,
        zero_s=0.0,
        counters=Counters(),
    )
    return made, queue, clock


def put_steps(queue, cuda, clock, numbers):
    cuda_clock = CudaStepClock()
    for number in numbers:
        queue.put(TimedStep(Step(t_s=clock.now_s(), step=number, start_s=0.0), a_step(cuda_clock, cuda, before_ms=5.0)))


def test_a_step_waits_for_its_events_and_those_behind_it_wait_too(cuda, intake):
    made, queue, clock = intake
    cuda.completed_ms = 15.0
    put_steps(queue, cuda, clock, [1, 2])  # their ends are at 15 and 30 ms
    queue.put(Step(t_s=0.0, step=3))
    assert [(s.step, s.gpu_busy_s) for s in made.gather(last=False)] == [(1, pytest.approx(0.010))]
    assert made.gather(last=False) == []
    cuda.completed_ms = 30.0
    second, third = made.gather(last=False)
    assert (second.step, second.gpu_busy_s, second.data_wait_idle_s) == (2, pytest.approx(0.010), pytest.approx(0.005))
    assert third.step == 3


def test_after_five_seconds_a_step_is_released_without_them(cuda, intake):
    made, queue, clock = intake
    cuda.completed_ms = 0.0
    put_steps(queue, cuda, clock, [1])
    clock.advance(RELEASE_S - 0.1)
    assert made.gather(last=False) == []
    clock.advance(0.2)
    (step,) = made.gather(last=False)
    assert (step.step, step.gpu_busy_s) == (1, None)


def test_the_last_round_releases_everything(cuda, intake):
    made, queue, clock = intake
    cuda.completed_ms = 0.0
    put_steps(queue, cuda, clock, [1, 2])
    assert [s.step for s in made.gather(last=True)] == [1, 2]


@pytest.mark.parametrize("call", ["query", "elapsed_time"])
def test_an_error_of_a_query_costs_the_times_and_not_the_step(cuda, intake, call):
    made, queue, clock = intake
    put_steps(queue, cuda, clock, [1, 2])
    cuda.raising[call] = RuntimeError("CUDA error: unspecified launch failure")
    clock.advance(RELEASE_S + 1.0)
    steps = made.gather(last=False)
    assert [(s.step, s.gpu_busy_s) for s in steps] == [(1, None), (2, None)]
    assert made._counters.errors["step_clock"] >= 2


# --- the allocator


def test_the_allocator_is_read_as_torch_counts_it(cuda):
    fact = allocator_fact(cuda, 0, 3, t_s=2.0, at="step_end", step=7)
    assert (fact.gpu, fact.step, fact.at, fact.peak_since) == (3, 7, "step_end", "process")
    assert (fact.allocated_bytes, fact.peak_allocated_bytes) == (100.0, 150.0)
    assert (fact.reserved_bytes, fact.peak_reserved_bytes) == (200.0, 250.0)
    assert (fact.active_bytes, fact.inactive_split_bytes, fact.alloc_retries, fact.ooms) == (110.0, 20.0, 1.0, 0.0)


def test_what_torch_does_not_tell_is_unknown(cuda):
    cuda.stats[0] = {"reserved_bytes.all.current": 5}
    fact = allocator_fact(cuda, 0, 0, t_s=0.0, at="sample", step=None)
    assert (fact.reserved_bytes, fact.allocated_bytes, fact.ooms) == (5.0, None, None)


def test_uuids_are_written_as_the_driver_writes_them(cuda):
    cuda.stats = [{}, {}, {}]
    cuda.uuids = ["00000000-1111", "GPU-22222222-3333", "MIG-44444444-5555"]
    assert torch_uuids(cuda) == ("GPU-00000000-1111", "GPU-22222222-3333", "MIG-44444444-5555")
    cuda.uuids[1] = None
    assert torch_uuids(cuda) == ()


def test_only_devices_that_hold_memory_are_used(cuda):
    cuda.stats = [{"reserved_bytes.all.current": n} for n in (0, 5, 0, 9)]
    assert used_ordinals(cuda) == (1, 3)


def test_a_monitored_loop_reads_clock_and_allocator(cuda):
    settings = {"backend": "mock:healthy", "listen": "off", "record": False, "log": False, "interval": 0.02}
    with Monitor(**settings) as monitor:
        monitor._feeder.sampler.ready.wait(5.0)
        for _ in range(3):
            with monitor.step():
                cuda.stream_ms += 10.0
        with monitor.step():
            raise_nothing = True
    assert raise_nothing
    report = monitor.report
    assert report.steps.done == 4
    assert report.gpus[0].allocator.reserved_bytes == 200.0
    assert "GPU idleness inside a step" not in " ".join(report.missing)
    assert cuda.calls["record"] == 2 * 4


def test_with_the_wall_clock_no_event_is_recorded(cuda):
    settings = {"backend": "none", "listen": "off", "record": False, "log": False, "step_clock": "wall"}
    with Monitor(**settings) as monitor, monitor.step():
        pass
    assert cuda.calls["record"] == 0


# --- the same with a real GPU


@pytest.mark.gpu
def test_on_a_gpu_the_clock_agrees_with_a_synchronized_one():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    a = torch.randn(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    clock = CudaStepClock()
    clock.begin()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(20):
        a @ a
    end.record()
    marks = clock.end()
    torch.cuda.synchronize()
    assert marks.done
    assert marks.busy_s() == pytest.approx(begin.elapsed_time(end) / 1000.0, rel=0.05, abs=1e-4)


@pytest.mark.gpu
def test_on_a_gpu_nothing_is_recorded_into_a_graph():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    x = torch.zeros(8, device="cuda")
    clock = CudaStepClock()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        clock.begin()
        x += 1
        assert clock.end() is None
    assert clock.failed is None
    graph.replay()
    torch.cuda.synchronize()
    assert x[0].item() == 1.0


@pytest.mark.gpu
def test_on_a_gpu_the_allocator_says_what_torch_says():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    kept = torch.empty(64 * 2**20, dtype=torch.uint8, device="cuda")
    cuda = torch_cuda()
    fact = allocator_fact(cuda, 0, 0, t_s=0.0, at="sample", step=None)
    assert fact.allocated_bytes == torch.cuda.memory_allocated(0)
    assert fact.reserved_bytes == torch.cuda.memory_reserved(0)
    assert fact.peak_allocated_bytes == torch.cuda.max_memory_allocated(0)
    assert used_ordinals(cuda) == (0,)
    assert torch_uuids(cuda)[0].startswith(("GPU-", "MIG-"))
    del kept


@pytest.mark.gpu
def test_on_a_gpu_a_monitored_loop_knows_device_and_idleness(tmp_path):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    from trainbudget.trace import read_trace

    a = torch.randn(2048, 2048, device="cuda")
    with Monitor(listen="off", run_directory=str(tmp_path / "run"), log=False) as monitor:
        for _ in range(30):
            with monitor.step():
                for _ in range(10):
                    a @ a
        torch.cuda.synchronize()
    facts = list(read_trace(tmp_path / "run"))
    assert any(isinstance(f, Step) and f.gpu_busy_s for f in facts)
    report = monitor.report
    assert [g.owned for g in report.gpus] == [True]
    assert report.gpus[0].info.uuid == torch_uuids(torch.cuda)[0]
    assert report.gpus[0].allocator is not None
    assert monitor._counters.errors == {}
