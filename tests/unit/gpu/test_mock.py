"""The mock card follows the training and tells the story of its scenario."""

from __future__ import annotations

import itertools
import statistics

import pytest

from trainbudget.errors import ConfigError
from trainbudget.events import BudgetFact, Event, Phase, PhaseBegin, Step
from trainbudget.gpu import open_backend
from trainbudget.gpu.mapping import map_devices
from trainbudget.gpu.mock import SCENARIOS, MockBackend
from trainbudget.gpu.mock_card import CONTEXT_BYTES, GIB, MEMORY_LIMIT_BYTES
from unit.gpu.mock_run import MockRun


def run(scenario="healthy", **arguments) -> MockRun:
    return MockRun(MockBackend(scenario, own_pid=11), **arguments).go()


def mean_utilization(done: MockRun) -> float:
    return statistics.mean(reading.utilization_ratio or 0.0 for reading in done.readings[2:])


def test_the_same_run_gives_the_same_readings():
    assert run(steps=80).readings == run(steps=80).readings


def test_another_seed_gives_other_noise():
    other = MockRun(MockBackend(seed=1, own_pid=11), steps=80).go()
    assert other.readings != run(steps=80).readings


def test_before_the_training_nothing_is_held_and_nothing_works():
    reading = MockBackend().read(0, now_s=1.0)
    assert reading.utilization_ratio == 0.0
    assert reading.memory_used_bytes < 0.1 * GIB
    assert 50 < reading.power_w < 75
    assert reading.throttle == ["gpu_idle"]


def test_a_busy_card_works_draws_power_and_warms_up():
    done = run()
    last = done.readings[-1]
    assert mean_utilization(done) > 0.9
    assert 300 < last.power_w < 400
    assert last.temperature_c > done.readings[0].temperature_c + 20
    assert last.sm_clock_hz == 1410e6
    assert last.throttle == []


def test_energy_is_the_integral_of_power():
    done = run(steps=400)
    first, last = done.readings[0], done.readings[-1]
    mean_w = (last.energy_j - first.energy_j) / (last.t_s - first.t_s)
    assert mean_w == pytest.approx(statistics.mean(reading.power_w for reading in done.readings[1:]), rel=0.02)


@pytest.mark.parametrize(("wait_s", "expected"), [(0.0, 0.96), (0.25, 0.48), (0.75, 0.24)])
def test_the_card_is_idle_while_the_training_waits_for_data(wait_s, expected):
    assert mean_utilization(run("input_bound", wait_s=wait_s, steps=100)) == pytest.approx(expected, abs=0.02)


def test_merged_steps_say_the_same_as_single_ones():
    backend = MockBackend()
    backend.observe(Event(event="train_begin"))
    backend.observe(Step(t_s=10.0, step=20, start_s=0.5, data_wait_s=5.0, step_s=5.0, count=20))
    assert backend.read(0, now_s=10.2).utilization_ratio == pytest.approx(0.48, abs=0.02)


@pytest.mark.parametrize(("phase", "low", "high"), [("eval", 0.7, 0.9), ("save", 0.0, 0.0), ("compile", 0.0, 0.0)])
def test_a_phase_has_its_own_load(phase, low, high):
    done = run(steps=40)
    done.backend.observe(PhaseBegin(t_s=done.now_s, phase=phase))
    assert low <= done.idle_for(3).utilization_ratio <= high
    done.backend.observe(Phase(t_s=done.now_s, phase=phase, start_s=done.now_s - 3))
    done.backend.observe(Step(t_s=done.now_s + 0.25, step=41, start_s=done.now_s))
    assert done.take().utilization_ratio > 0.9


def test_after_the_end_memory_is_held_and_nothing_works():
    done = run(steps=40)
    done.backend.observe(Event(event="train_end", t_s=done.now_s))
    last = done.idle_for(60)
    assert last.utilization_ratio == 0.0
    assert last.memory_used_bytes > 40 * GIB
    assert last.temperature_c < done.readings[-60].temperature_c


def test_memory_is_context_and_cache():
    done = run(steps=40)
    assert done.readings[-1].memory_used_bytes == pytest.approx(done.allocators[-1].reserved_bytes + CONTEXT_BYTES, rel=0.001)


def test_used_free_and_reserved_are_the_whole_card():
    for reading in run("neighbour").readings:
        total = reading.memory_used_bytes + reading.memory_free_bytes + reading.memory_reserved_bytes
        assert total == pytest.approx(85_899_345_920, abs=2)


def test_every_step_has_an_allocator_fact():
    done = run(steps=40)
    done.take()
    assert [fact.step for fact in done.allocators] == list(range(1, 41))
    assert done.backend.allocator(done.now_s) == ()


@pytest.mark.parametrize("steps", [150, 400])
def test_a_leak_grows_steadily_and_meets_the_limit_before_the_end(steps):
    done = run("leak", steps=steps)
    rest = [fact.allocated_bytes for fact in done.allocators]
    growth = [b - a for a, b in itertools.pairwise(rest)][: int(steps * 0.85)]
    assert min(growth) > 0
    half = len(growth) // 2
    assert statistics.mean(growth[half:]) == pytest.approx(statistics.mean(growth[:half]), rel=0.05)
    held = [fact.reserved_bytes for fact in done.allocators]
    assert held[steps // 2] < 0.85 * MEMORY_LIMIT_BYTES
    assert held[-1] + CONTEXT_BYTES == pytest.approx(MEMORY_LIMIT_BYTES, rel=0.001)
    assert done.allocators[-1].alloc_retries > 0


def test_a_healthy_run_does_not_grow():
    done = run("healthy")
    assert done.allocators[-1].allocated_bytes == done.allocators[20].allocated_bytes
    assert done.allocators[-1].reserved_bytes < 1.01 * done.allocators[20].reserved_bytes
    assert done.allocators[-1].alloc_retries == 0


def test_a_long_batch_has_a_peak_by_its_length():
    done = run("long_batch", steps=100, lengths={60: 192.0})
    done.take()
    peaks = {fact.step: fact.peak_allocated_bytes for fact in done.allocators}
    rest = done.allocators[0].allocated_bytes
    assert peaks[60] - rest == pytest.approx(1.5 * (peaks[59] - rest), rel=0.02)
    assert peaks[61] == pytest.approx(peaks[59], rel=0.02)


def test_a_long_batch_comes_by_itself_where_lengths_are_not_told():
    done = run("long_batch", steps=100, tell_lengths=False)
    done.take()
    peaks = [fact.peak_allocated_bytes for fact in done.allocators]
    long_ones = [step for step, peak in enumerate(peaks, 1) if peak > 1.3 * peaks[0]]
    assert long_ones == [60]


def test_fragmentation_grows_what_is_held_and_not_what_is_used():
    done = run("fragmentation")
    done.take()
    first, last = done.allocators[10], done.allocators[-2]
    assert last.allocated_bytes == first.allocated_bytes
    assert last.peak_allocated_bytes == pytest.approx(first.peak_allocated_bytes, rel=0.01)
    assert last.reserved_bytes > 1.5 * first.reserved_bytes
    assert last.inactive_split_bytes > 5 * first.inactive_split_bytes
    assert done.allocators[-1].alloc_retries >= 3


def test_a_neighbour_comes_in_mid_run():
    done = run("neighbour", steps=400)
    listed = [process for reading in done.readings for process in reading.processes or []]
    foreign = [process for process in listed if not process.own]
    assert foreign
    assert {process.started_before_run for process in foreign} == {False}
    assert foreign[-1].memory_bytes > foreign[0].memory_bytes
    assert done.readings[-1].memory_used_bytes > done.readings[20].memory_used_bytes + 20 * GIB


def test_throttling_slows_the_clock_and_not_the_utilization():
    done = run("throttle", steps=240)  # a minute
    last = done.readings[-1]
    assert 85 < last.temperature_c < 92
    assert sum(reading.throttle == ["sw_thermal_slowdown"] for reading in done.readings) > 15
    assert done.readings[10].throttle == []
    assert last.sm_clock_hz < 1100e6
    assert last.throttle == ["sw_thermal_slowdown"]
    assert last.utilization_ratio > 0.9


def test_a_lost_card_says_so_in_every_query():
    done = run("lost")
    good = [reading for reading in done.readings if not reading.errors]
    assert len(good) > 20
    last = done.readings[-1]
    assert set(last.errors.values()) == {15}
    assert {"handle", "utilization", "memory_v2", "power"} <= set(last.errors)
    assert (last.utilization_ratio, last.memory_used_bytes, last.power_w) == (None, None, None)


def test_a_hang_is_full_utilization_at_low_power():
    done = run("hang", steps=60)
    assert done.readings[-1].power_w > 300
    last = done.idle_for(10)
    assert last.utilization_ratio == 1.0
    assert last.power_w < 0.4 * 345
    assert last.memory_utilization_ratio == 0.0


def test_steps_that_stop_leave_other_cards_idle():
    assert run("healthy", steps=60).idle_for(10).utilization_ratio == 0.0


def test_an_idle_card_is_never_touched():
    done = run("idle")
    assert mean_utilization(done) == 0.0
    assert max(reading.memory_used_bytes for reading in done.readings) < 0.1 * GIB
    assert done.readings[-1].processes in ([], None)
    assert done.allocators == []


def test_an_unsupported_query_is_refused_once_and_absent_for_ever():
    done = run("unsupported")
    assert done.backend.open()[0].memory_limit_bytes == 85_899_345_920
    assert done.readings[0].errors["utilization"] == 3
    assert all(reading.errors is None for reading in done.readings[1:])
    assert all(reading.utilization_ratio is None and reading.power_w is None for reading in done.readings)
    assert all(reading.memory_used_bytes is not None for reading in done.readings)


@pytest.mark.parametrize("gpus", [2, 3, 8])
def test_no_index_is_its_rank(gpus):
    backend = MockBackend(gpus=gpus)
    uuids = [gpu.uuid for gpu in backend.open()]
    assert sorted(uuids) == sorted(backend.framework_uuids)
    assert all(uuids[rank] != backend.framework_uuids[rank] for rank in range(gpus))


@pytest.mark.parametrize(("rank", "world", "spare"), [(0, 1, 2), (0, 2, 1), (1, 2, 1), (2, 3, 0)])
def test_a_rank_is_mapped_to_the_card_that_its_training_drives(rank, world, spare):
    backend = MockBackend(gpus=3, local_rank=rank, local_world_size=world)
    found = map_devices(
        backend.identities,
        visible=None,
        order=None,
        torch_uuids=backend.framework_uuids,
        local_rank=rank,
        local_world_size=world,
        used=backend.used_ordinals,
    )
    MockRun(backend, steps=40).go()
    assert len(found.spare) == spare
    assert [backend.read(index, now_s=10.1).utilization_ratio for index in found.spare] == [0.0] * spare
    own = backend.read(found.owned[0], now_s=100.0)
    assert [process.own for process in own.processes] == [True]


def test_only_the_cards_of_training_ranks_work():
    backend = MockBackend(gpus=4, local_rank=1, local_world_size=2)
    MockRun(backend, steps=40).go()
    shares = [backend.read(uuid, now_s=10.1).utilization_ratio for uuid in backend.framework_uuids]
    assert [share > 0.5 for share in shares] == [True, True, False, False]


def test_a_rank_trains_on_its_card_even_where_the_number_of_ranks_was_not_told():
    backend = MockBackend(gpus=2, local_rank=1)
    MockRun(backend, steps=40).go()
    assert backend.read(backend.framework_uuids[1], now_s=10.1).utilization_ratio > 0.9


def test_a_run_that_ends_in_a_phase_leaves_the_card_idle():
    done = run(steps=40)
    done.backend.observe(PhaseBegin(t_s=done.now_s, phase="eval"))
    done.backend.observe(Event(event="exception", t_s=done.now_s))
    assert done.idle_for(3).utilization_ratio == 0.0


def test_a_length_learnt_in_mid_run_does_not_make_the_story_jump():
    done = run("leak", steps=100)
    before = done.readings[-1].memory_used_bytes
    done.backend.observe(BudgetFact(steps_total=1000))
    done.backend.observe(Step(t_s=done.now_s + 0.25, step=101, start_s=done.now_s))
    done.now_s += 0.25
    assert done.take().memory_used_bytes >= before
    assert done.allocators[-1].allocated_bytes == pytest.approx(done.allocators[-2].allocated_bytes, rel=0.01)


def test_own_process_is_on_its_own_card_only():
    backend = MockBackend(gpus=2, local_rank=0, local_world_size=2, own_pid=11)
    MockRun(backend, steps=4, read=backend.framework_uuids[0]).go()
    lists = [backend.read(uuid, now_s=100.0).processes for uuid in backend.framework_uuids]
    assert [[(process.pid == 11, process.own) for process in processes] for processes in lists] == [
        [(True, True)],
        [(False, False)],
    ]


def test_the_allocator_is_that_of_the_own_card():
    backend = MockBackend(gpus=2, local_rank=1, local_world_size=2)
    own = next(gpu.gpu for gpu in backend.open() if gpu.uuid == backend.framework_uuids[1])
    done = MockRun(backend, steps=4).go()
    assert {fact.gpu for fact in done.allocators} == {own}


def test_time_that_goes_back_changes_no_counter():
    backend = MockBackend()
    before = backend.read(0, now_s=50.0).energy_j
    assert backend.read(0, now_s=10.0).energy_j == before
    assert backend.read(0, now_s=50.0).energy_j == before


@pytest.mark.parametrize("arguments", [{"scenario": "nonsense"}, {"gpus": 2, "local_rank": 2}, {"gpus": 0}])
def test_a_mock_that_cannot_be_is_refused(arguments):
    with pytest.raises(ConfigError):
        MockBackend(**arguments)


def test_every_scenario_has_a_help_text():
    expected = "healthy idle input_bound leak long_batch fragmentation neighbour throttle lost hang unsupported"
    assert list(SCENARIOS) == expected.split()
    assert all(SCENARIOS.values())


def test_a_card_of_any_memory_and_its_stories_shrink_with_it():
    done = MockRun(open_backend("mock:leak:24"), steps=300).go()
    (gpu,) = done.backend.open()
    assert gpu.memory_limit_bytes == 24 * GIB
    held = [reading.memory_used_bytes for reading in done.readings]
    assert max(held) == pytest.approx(24 * GIB, rel=0.01)
    assert max(held) <= 24 * GIB
    (fact, *_) = done.backend.allocator(done.now_s) or [None]
    assert fact is None or fact.peak_reserved_bytes < 24 * GIB


@pytest.mark.parametrize("name", ["mock:healthy:much", "mock:healthy:0.4", "mock:healthy:90", "mock:healthy:nan"])
def test_a_card_without_room_is_refused(name):
    with pytest.raises(ConfigError, match="mock"):
        open_backend(name)
