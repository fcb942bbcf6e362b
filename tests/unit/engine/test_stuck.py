"""The stuck family: what it raises, when, whom it names, and what is no standstill."""

from __future__ import annotations

import pytest

from trainbudget.events import Progress, Rank
from trainbudget.findings import Severity
from unit.engine.feeding import fed, findings, loud
from unit.engine.minimal import stuck as minimal
from unit.engine.traces import Build

STUCK = {"hang", "collective_hang", "no_first_step", "gpu_lost", "gpu_unavailable", "sampler_stalled", "gpu_idle"}


def one(events, code):
    found = findings(events, code)
    assert len(found) == 1, [f.name for f in findings(events)]
    return found[0]


def codes(events):
    return {f.code for f in findings(events)} & (STUCK | {"monitor_degraded"})


# --- hang


@pytest.mark.parametrize(("step_s", "after_s"), [(0.2, 120.0), (1.0, 120.0), (30.0, 300.0)])
def test_hang_after_ten_steps_or_two_minutes(step_s, after_s):
    events = minimal.hang(seconds=2.0 * after_s, step_s=step_s)
    found = one(events, "hang")
    last_step_s = max(e.t_s for e in events if type(e).__name__ == "Step")
    assert found.severity is Severity.CRITICAL
    assert 0.97 * after_s <= found.raised_s - last_step_s <= 1.03 * after_s + 10.0
    assert found.evidence["limit_s"] == pytest.approx(after_s, rel=0.05)
    assert codes(events) - {"monitor_degraded"} == {"hang"}


def test_hang_is_over_with_the_next_step():
    build = minimal.idle(minimal.running()).wait(200.0)
    build.reading[0]["utilization_ratio"] = 0.95
    found = one(build.steps(60).end(), "hang")
    assert found.cleared_s is not None


@pytest.mark.parametrize("phase", ["eval", "save", "compile"])
def test_long_phases_are_no_hang(phase):
    assert codes(minimal.idle(minimal.running()).phase(phase, 500.0).steps(30).end()) == set()


def test_hang_after_a_save_says_so():
    found = one(minimal.stopped(minimal.idle(minimal.running().phase("save", 20.0))), "hang")
    assert found.evidence["after_phase"] == "save"


@pytest.mark.parametrize("moment", ["train_end", "interrupt", "exception"])
def test_nothing_hangs_after_the_end(moment):
    build = minimal.idle(minimal.running().moment(moment)).wait(400.0)
    assert codes(build.end(train_end=False)) == set()


def test_sleep_is_no_hang():
    assert codes(minimal.asleep()) == set()


def test_a_run_that_compiles_may_compile_again():
    """The first compilation took 150 s: 200 s of silence are a new shape, 400 s are not."""
    build = Build(settings={"torch_compile": True}).gpu()
    build.reading[0]["utilization_ratio"] = 0.02
    build.start().steps(1, 150.0)
    build.reading[0]["utilization_ratio"] = 0.95
    build.steps(60)
    build.reading[0]["utilization_ratio"] = 0.02
    assert "hang" in codes(minimal.stopped(build, 400.0))
    build = Build(settings={"torch_compile": True}).gpu().start().steps(1, 150.0).steps(60)
    build.reading[0]["utilization_ratio"] = 0.02
    assert codes(minimal.stopped(build, 200.0)) == set()


def test_somebody_at_a_breakpoint():
    build = minimal.idle(minimal.running(interactive=True, framework="loop"))
    assert one(minimal.stopped(build, 900.0), "hang").severity is Severity.INFO
    build = minimal.idle(minimal.running(interactive=True, framework="loop"))
    events = minimal.stopped(build, 2000.0)  # half an hour: nobody is there
    assert [f.code for f in loud(events)] == ["notebook_idle"]
    assert one(events, "hang").severity is Severity.INFO
    build = minimal.running(interactive=True, framework="loop")  # the GPU works: nobody thinks here
    assert one(minimal.stopped(build, 300.0), "hang").severity is Severity.CRITICAL


# --- collective hang


@pytest.mark.parametrize(("power_w", "memory"), [(110.0, 0.01), (140.0, None), (None, 0.02)])
def test_collective_hang(power_w, memory):
    events = minimal.collective_hang(power_w, memory)
    found = one(events, "collective_hang")
    assert found.severity is Severity.CRITICAL
    assert found.evidence["utilization_ratio"] == pytest.approx(1.0)
    assert found.evidence["power_w"] == power_w
    assert codes(events) - {"monitor_degraded"} == {"collective_hang"}  # not a hang as well


def test_collective_hang_names_the_ranks_that_left():
    found = one(minimal.left_early(2, 3), "collective_hang")
    assert found.evidence["suspect_ranks"] == [2, 3]
    assert "rank 2, 3" in found.summary


def test_a_peer_that_left_tells_a_spin_without_power_and_memory():
    assert codes(minimal.left_early(1, told=False)) == {"collective_hang"}


def test_several_gpus_of_one_process_name_those_without_work():
    build = minimal.spinning(minimal.running(gpus=4), 0, 1)
    found = one(minimal.stopped(minimal.idle(build, 2, 3)), "collective_hang")
    assert found.evidence["suspect_gpus"] == [2, 3]


def test_own_rank_left_while_others_spin():
    build = minimal.running(1, world_size=4)
    for _ in range(20):
        build.steps(10)
        for rank in (1, 2, 3):
            build.add(Rank(t_s=build.t, rank=rank, step=build.step, utilization_ratio=0.97, power_w=310.0, state="running"))
    minimal.idle(build)
    for _ in range(20):
        build.wait(10.0)
        for rank in (1, 2, 3):
            build.add(Rank(t_s=build.t, rank=rank, step=build.step, utilization_ratio=1.0, power_w=112.0, state="running"))
    found = one(build.end("interrupted", train_end=False), "collective_hang")
    assert found.evidence["suspect_ranks"] == [0]


@pytest.mark.parametrize(
    "events",
    [
        minimal.collective_hang(power_w=290.0),  # it works: one long kernel
        minimal.collective_hang(power_w=None, memory=None),  # nobody can tell
        minimal.collective_hang(world_size=1),  # no peers, no collective
        minimal.stopped(minimal.idle(minimal.running(world_size=4))),  # idle, not spinning
    ],
)
def test_otherwise_it_is_a_plain_hang(events):
    assert codes(events) - {"monitor_degraded"} == {"hang"}


def test_rank_behind_is_named_in_a_plain_hang():
    build = minimal.idle(minimal.running(world_size=3))
    for _ in range(20):
        build.wait(10.0)
        build.add(Rank(t_s=build.t, rank=1, step=60, state="running"), Rank(t_s=build.t, rank=2, step=41, state="running"))
    assert one(build.end("interrupted", train_end=False), "hang").evidence["suspect_ranks"] == [2]


# --- first step


def test_no_first_step():
    found = one(minimal.no_first_step(2000.0), "no_first_step")
    assert found.severity is Severity.CRITICAL  # after half an hour
    assert 610.0 <= found.raised_s <= 620.0
    assert one(minimal.no_first_step(), "no_first_step").severity is Severity.WARNING


@pytest.mark.parametrize(
    "events",
    [
        minimal.no_first_step(500.0),
        minimal.idle(Build().gpu()).wait(1500.0).start().steps(30).end(),  # nothing announced yet
        minimal.idle(Build().gpu()).phase("preprocess", 1700.0).start().steps(30).end(),  # a phase that said what it does
        minimal.idle(Build().gpu()).start().moment("resume", step=1000).wait(900.0).steps(30).end(),  # skips data
    ],
)
def test_start_ups_that_are_long_and_explained(events):
    assert "no_first_step" not in codes(events)


def test_progress_is_a_word():
    build = minimal.idle(Build().gpu()).start()
    for done in range(1, 8):
        build.wait(300.0).add(Progress(t_s=build.t, phase="preprocess", items_done=done * 1000.0))
    assert "no_first_step" not in codes(build.steps(30).end())


def test_a_phase_that_never_ends_is_told_later():
    build = minimal.idle(Build().gpu())
    build.events.append(type(build.phase("load", 0.0).events[-2])(t_s=build.t, phase="load"))
    found = one(build.wait(2200.0).end("interrupted", train_end=False), "no_first_step")
    assert found.phase == "load"
    assert found.raised_s >= 1800.0


# --- GPU lost, unavailable


@pytest.mark.parametrize("code", [15, 16, 28])
def test_lost_at_once(code):
    events = minimal.gpu_lost(code)
    found = one(events, "gpu_lost")
    first = min(e.t_s for e in events if getattr(e, "errors", None))
    assert found.severity is Severity.CRITICAL
    assert found.evidence["code"] == code
    assert found.raised_s - first <= 10.0
    assert "hang" not in codes(events)  # its cause is told


def test_unknown_error_is_a_lost_gpu_only_together_with_a_hang():
    assert "gpu_lost" in codes(minimal.gpu_lost(999))
    assert "hang" not in codes(minimal.gpu_lost(999))
    assert codes(minimal.gpu_lost(999, hangs=False)) == {"gpu_unavailable"}


def test_library_errors_say_nothing_about_the_device():
    build = minimal.running()
    build.reading[0] = {"errors": {"init": 18}}
    assert codes(minimal.stopped(build)) == {"gpu_unavailable", "hang"}


def test_one_of_four_is_lost_and_the_idle_others_are_not_blamed():
    build = minimal.idle(minimal.running(gpus=4))
    build.reading[2] = {"errors": {"handle": 15}}
    events = minimal.stopped(build, 900.0)
    assert one(events, "gpu_lost").gpu == 2
    assert codes(events) == {"gpu_lost"}


@pytest.mark.parametrize(
    ("code", "text", "cause"),
    [
        (12, None, "library_not_found"),
        ("18", None, "driver_mismatch"),
        (4, None, "permission"),
        ("cpu_build", None, "cpu_build"),
        (999, "Driver/library version mismatch", "driver_mismatch"),
        (999, None, "unknown"),
    ],
)
def test_unavailable_from_the_start(code, text, cause):
    found = one(minimal.no_backend(code, text), "gpu_unavailable")
    assert found.cause == cause
    assert found.severity is Severity.WARNING


def test_a_machine_without_gpu_is_no_finding():
    assert findings(minimal.no_backend("no_gpu")) == []


def test_unavailable_after_a_minute_while_steps_go_on():
    events = minimal.gpu_unavailable(18)
    first = min(e.t_s for e in events if getattr(e, "errors", None))
    found = one(events, "gpu_unavailable")
    assert found.cause == "driver_mismatch"
    assert 60.0 <= found.raised_s - first <= 70.0
    assert codes(events) == {"gpu_unavailable"}


# --- the watcher


def test_readings_stop():
    found = one(minimal.sampler_stalled(), "sampler_stalled")
    assert found.evidence["silent_s"] >= 30.0


def test_a_slower_sampler_is_no_stall():
    """At rest the sampler slows down: three of its own periods count."""
    build = minimal.running()
    build.sample_period_s = 12.0
    assert "sampler_stalled" not in codes(build.steps(200).end())


def test_vital_query_vanishes():
    found = one(minimal.monitor_degraded(), "monitor_degraded")
    assert found.severity is Severity.WARNING
    assert found.evidence["queries"] == {"utilization": 999}


def test_power_vanishes_without_a_word():
    found = one(minimal.monitor_degraded("power", "power_w", None), "monitor_degraded")
    assert found.severity is Severity.INFO
    assert found.evidence["queries"] == {"power": None}


def test_what_was_never_supported_is_not_missed():
    build = Build().gpu()
    build.reading[0].update(utilization_ratio=None, errors={"utilization": 3})
    assert findings(build.start().steps(300).end()) == []


@pytest.mark.parametrize("step_s", [0.3, 2.0, 20.0])
@pytest.mark.parametrize("period_s", [0.5, 10.0])
def test_healthy_runs_are_silent(step_s, period_s):
    build = minimal.running(max(40, int(300 / step_s)), step_s, sample_period_s=period_s)
    assert loud(build.end()) == []


def test_ledger_books_the_standstill_as_stall():
    engine = fed(minimal.hang(600.0))
    assert engine.ledger.seconds["stall"] == pytest.approx(600.0, abs=10.0)
