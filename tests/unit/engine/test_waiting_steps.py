"""The waiting family, part two: where the time of single steps and epochs goes."""

from __future__ import annotations

import random

import pytest

from trainbudget.findings import Severity
from unit.engine.feeding import fed, findings, loud
from unit.engine.minimal import waiting as minimal
from unit.engine.traces import Build


def one(events, code):
    found = findings(events, code)
    assert len(found) == 1, [f.name for f in findings(events)]
    return found[0]


def codes(events):
    return {f.code for f in findings(events)}


# --- input


def test_input_bound_is_measured_exactly():
    found = one(minimal.input_bound(0.6), "input_bound")
    assert found.severity is Severity.WARNING
    assert found.evidence["wait_ratio"] == pytest.approx(0.6, abs=0.02)
    assert found.evidence["assumed"] is False
    assert (found.cause, found.evidence["loader_workers"]) == ("workers", 0)


@pytest.mark.parametrize(("wait_s", "severity"), [(0.03, None), (0.08, Severity.INFO), (0.4, Severity.WARNING)])
def test_input_bound_by_share(wait_s, severity):
    found = findings(minimal.input_bound(wait_s), "input_bound")
    assert [f.severity for f in found] == ([] if severity is None else [severity])


@pytest.mark.parametrize("step_s", [0.15, 2.0, 45.0])
@pytest.mark.parametrize("period_s", [0.5, 10.0])
def test_input_bound_at_any_pace(step_s, period_s):
    events = minimal.input_bound(1.5 * step_s, step_s=step_s, steps=max(60, int(200 / step_s)), sample_period_s=period_s)
    assert one(events, "input_bound").evidence["wait_ratio"] == pytest.approx(0.6, abs=0.03)


def test_a_wait_with_a_busy_gpu_costs_nothing():
    assert codes(minimal.input_bound(0.6, utilization=0.97)) == set()


def test_the_exact_idle_part_of_the_wait_is_believed():
    build = minimal.waiting(0.6, utilization=0.4)
    assert "input_bound" in codes(build.end())
    build = Build().gpu()
    build.reading[0]["utilization_ratio"] = 0.4
    build.start().steps(120, 0.4, wait_s=0.6, data_wait_idle_s=0.02)
    assert "input_bound" not in codes(build.end())


def test_without_utilization_the_wait_counts_and_says_so():
    build = Build().gpu()
    build.reading[0]["utilization_ratio"] = None
    found = one(build.start().steps(120, 0.4, wait_s=0.6).end(), "input_bound")
    assert found.evidence["assumed"] is True


def test_not_before_utilization_is_known():
    """Readings come every ten seconds: the wait is known first, what the GPU did in it later."""
    assert "input_bound" not in codes(minimal.input_bound(0.6, utilization=0.97, sample_period_s=10.0))


@pytest.mark.parametrize(
    ("host", "cause"),
    [
        ({"cpu_ratio": 0.97, "loader_workers": 32}, "cpu"),
        ({"cpu_ratio": 0.3, "loader_workers": 2}, "workers"),
        ({"cpu_ratio": 0.3, "loader_workers": 4, "io_wait_ratio": 0.3}, "storage"),
        ({"cpu_ratio": 0.3, "loader_workers": 4, "children_cpu_ratio": 0.4, "read_bytes_per_s": 3e8}, "storage"),
        ({"cpu_ratio": 0.3, "loader_workers": None}, None),
    ],
)
def test_cause_from_the_host(host, cause):
    assert one(minimal.input_bound(0.6, host=host), "input_bound").cause == cause


def test_workers_from_the_settings():
    host = {"loader_workers": None, "cpu_ratio": None}
    found = one(minimal.input_bound(0.6, host=host, settings={"dataloader_num_workers": 0}), "input_bound")
    assert (found.cause, found.evidence["loader_workers"]) == ("workers", 0)


def test_start_up_load_is_not_the_load_of_training():
    """A quiet start-up must not hide CPUs that are full since."""
    build = Build().gpu()
    build.host.update(cpu_ratio=0.02, loader_workers=8)
    build.reading[0]["utilization_ratio"] = 0.4
    build.start(300.0)
    build.host["cpu_ratio"] = 0.97
    assert one(build.steps(60, 0.4, wait_s=0.6).end(), "input_bound").cause == "cpu"


def test_tokenizing_on_the_fly():
    assert one(minimal.tokenize(), "input_bound").cause == "tokenize"


@pytest.mark.parametrize("workers", [2, 6, 16])
def test_burst_period_is_the_number_of_workers(workers):
    found = one(minimal.burst(workers), "input_bound")
    assert found.cause == "burst"
    assert found.evidence["burst_period"] == workers


def late_now_and_then(count, seed=3):
    rng = random.Random(seed)
    late = set(rng.sample(range(1, 121), count))
    return minimal.late(lambda n: {"data_wait_s": 4.0 if n in late else 0.002}, host={"cpu_ratio": 0.2, "loader_workers": 6})


def test_irregular_waits_are_input_bound_without_being_a_burst():
    found = one(late_now_and_then(24), "input_bound")
    assert (found.cause, found.severity) == ("workers", Severity.WARNING)
    assert found.evidence["burst_period"] is None


def test_two_hiccups_are_no_habit():
    assert "input_bound" not in codes(late_now_and_then(2))


def test_cold_cache_ends_with_the_first_epoch():
    found = one(minimal.cold_cache(), "input_bound")
    assert found.cause == "cold_cache"
    assert found.cleared_s is not None
    assert one(minimal.cold_cache(second_wait_s=0.6), "input_bound").cause == "storage"


def test_a_resume_that_skips_data_is_start_up():
    build = Build().gpu()
    build.start().moment("resume", step=500)
    build.reading[0]["utilization_ratio"] = 0.0
    build.steps(1, 1.0, wait_s=300.0)
    build.reading[0]["utilization_ratio"] = 0.95
    engine = fed(build.steps(100).end())
    assert not [f for f in engine.findings if f.code in ("input_bound", "epoch_start_overhead")]
    assert engine.ledger.seconds["startup"] == pytest.approx(311.0, abs=3.0)


# --- epochs


def test_epoch_start_overhead():
    found = one(minimal.epochs(), "epoch_start_overhead")
    assert found.severity is Severity.WARNING
    assert found.evidence["ratio"] == pytest.approx(3.2 / 5.2, abs=0.05)
    assert "input_bound" not in codes(minimal.epochs())


def test_epochs_whose_end_nobody_tells():
    events = [e for e in minimal.epochs() if getattr(e, "event", "") != "epoch_end"]
    assert one(events, "epoch_start_overhead").evidence["epoch_s"] == pytest.approx(5.2, abs=0.2)


def test_epoch_start_by_share():
    assert one(minimal.epochs(3.2, 40, 1.0, 5), "epoch_start_overhead").severity is Severity.INFO
    assert "epoch_start_overhead" not in codes(minimal.epochs(1.0, 60, 1.0, 4))


def test_one_slow_first_epoch_is_no_habit():
    build = Build().gpu().start()
    for gap_s in (20.0, 0.01, 0.01, 0.01):
        build.moment("epoch_begin").steps(1, 0.2, wait_s=gap_s).steps(30, 0.2).moment("epoch_end")
    assert "epoch_start_overhead" not in codes(build.end())


def test_evaluations_between_epochs_are_phases():
    events = minimal.epochs(0.01, 50, 0.2, 6, eval_s=5.0)
    assert codes(events) & {"epoch_start_overhead", "input_bound", "gpu_idle"} == set()


# --- optimizer on the CPU


@pytest.mark.parametrize(
    "events",
    [
        minimal.optimizer_offload(),
        minimal.optimizer_offload(gpu_busy_s=None),  # by utilization
        minimal.optimizer_offload(steps=80, step_s=0.5),
    ],
)
def test_optimizer_offload(events):
    engine = fed(events)
    found = [f for f in engine.findings if f.code == "optimizer_offload"]
    assert [f.severity for f in found] == [Severity.WARNING]
    assert found[0].evidence["idle_ratio"] == pytest.approx(0.9, abs=0.03)
    share = engine.ledger.seconds["optimizer_offload"] / sum(engine.ledger.seconds.values())
    assert share > 0.6
    assert not {f.code for f in engine.findings} & {"launch_bound", "input_bound"}


def test_offload_by_settings_without_the_optimizers_time():
    zero = {"deepspeed": {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}}
    build = Build(settings=zero).gpu()
    build.reading[0]["utilization_ratio"] = 0.3
    found = one(build.start().steps(60, 2.0, gpu_busy_s=0.6).end(), "optimizer_offload")
    assert found.evidence["offload_configured"] is True


@pytest.mark.parametrize(
    "events",
    [
        minimal.optimizer_offload(0.1),  # a GPU's share
        minimal.optimizer_offload(0.5, gpu_busy_s=14.5),  # slow, but on the GPU
        minimal.optimizer_offload(steps=12),  # too early
    ],
)
def test_no_offload(events):
    assert "optimizer_offload" not in codes(events)


# --- split models


def test_naive_split():
    found = one(minimal.naive_model_parallel(), "naive_model_parallel")
    assert found.severity is Severity.WARNING
    assert found.evidence["sum_of_utilization"] == pytest.approx(0.98, abs=0.05)
    assert found.evidence["device_map"] == "auto"


def test_naive_split_is_seen_without_a_device_map():
    found = one(minimal.naive_model_parallel(None), "naive_model_parallel")
    assert found.evidence["correlation"] < -0.8


@pytest.mark.parametrize(
    "events",
    [
        minimal.naive_model_parallel(None, in_turns=False),  # both busy, both idle: one waits for something else
        minimal.unused_gpu(),
        minimal.unused_gpu(0.95),
    ],
)
def test_no_split(events):
    assert "naive_model_parallel" not in codes(events)


# --- collections, launches, communication


def test_gc_pause():
    found = one(minimal.gc_pause(1.0, 10), "gc_pause")
    assert found.severity is Severity.INFO
    assert found.evidence["ratio"] == pytest.approx(1.0 / 11.1, abs=0.02)
    assert one(minimal.gc_pause(2.0, 10), "gc_pause").severity is Severity.WARNING


def test_collections_between_steps_are_a_gap_of_the_host():
    engine = fed(minimal.gc_pause(1.0, 10, steps=300))
    assert engine.ledger.seconds["host_gap"] == pytest.approx(29.0, abs=1.5)
    assert engine.ledger.seconds.get("other", 0.0) < 2.0


def test_rare_collections_are_nothing():
    assert "gc_pause" not in codes(minimal.gc_pause(0.3, 60))


@pytest.mark.parametrize(
    ("told", "cpu", "severity"), [(True, 1.0, Severity.WARNING), (False, 1.0, Severity.WARNING), (True, None, Severity.INFO)]
)
def test_launch_bound(told, cpu, severity):
    found = one(minimal.launch_bound(told=told, cpu=cpu), "launch_bound")
    assert found.severity is severity
    assert found.evidence["idle_ratio"] == pytest.approx(0.6, abs=0.03)


@pytest.mark.parametrize(
    "events",
    [
        minimal.launch_bound(budget={"step_time_s": 0.5}),  # as planned
        minimal.launch_bound(0.8),
        minimal.launch_bound(cpu=0.2),  # the host has nothing to do either
        minimal.optimizer_offload(),
        minimal.input_bound(0.6),
        minimal.communication_bound(),
    ],
)
def test_not_launch_bound(events):
    assert "launch_bound" not in codes(events)


def test_communication_bound():
    assert one(minimal.communication_bound(0.45), "communication_bound").severity is Severity.WARNING
    assert one(minimal.communication_bound(0.25), "communication_bound").severity is Severity.INFO
    assert "communication_bound" not in codes(minimal.communication_bound(0.12))
    assert "communication_bound" not in codes(minimal.communication_bound(0.45, world_size=1))


@pytest.mark.parametrize("step_s", [0.2, 3.0, 40.0])
def test_healthy_steps_are_silent(step_s):
    build = Build(settings={"torch_compile": True}).gpu().start()
    build.steps(1, 12.0 * step_s).steps(max(60, int(300 / step_s)), step_s, gpu_busy_s=0.95 * step_s)
    assert loud(build.end()) == []
