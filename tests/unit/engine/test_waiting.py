"""The waiting family, part one: GPUs that do nothing at all, before, beside and after training."""

from __future__ import annotations

import pytest

from trainbudget.events import Process, Progress, Step
from trainbudget.findings import Severity
from unit.engine.feeding import fed, findings, loud
from unit.engine.minimal import waiting as minimal
from unit.engine.traces import GIB, Build


def one(events, code):
    found = findings(events, code)
    assert len(found) == 1, [f.name for f in findings(events)]
    return found[0]


def codes(events):
    return {f.code for f in findings(events)}


# --- idle while training


def test_gpu_idle_in_a_long_evaluation():
    found = one(minimal.gpu_idle(15.0), "gpu_idle")
    assert found.severity is Severity.WARNING
    assert (found.gpu, found.phase) == (0, "eval")
    assert 600.0 <= found.evidence["idle_s"] <= 620.0
    assert found.cleared_s is not None


def test_gpu_idle_gets_critical_after_half_an_hour():
    assert one(minimal.gpu_idle(35.0), "gpu_idle").severity is Severity.CRITICAL


def test_a_pause_shorter_than_ten_minutes_is_none():
    assert "gpu_idle" not in codes(minimal.gpu_idle(9.0))


def test_gpu_idle_needs_an_answer():
    build = Build().gpu()
    build.reading[0]["utilization_ratio"] = None
    assert "gpu_idle" not in codes(build.start().steps(60).phase("eval", 900.0).steps(30).end())


def test_old_readings_are_not_todays():
    build = Build().gpu().start().steps(60)
    build.reading[0]["utilization_ratio"] = 0.0
    build.wait(5.0)
    build.reading.clear()
    assert "gpu_idle" not in codes(build.phase("save", 900.0).steps(30).end())


def test_agent_without_a_training_loop_sees_idleness():
    build = Build(framework="agent").gpu()
    build.reading[0]["utilization_ratio"] = 0.0
    assert one(build.wait(700.0).end(train_end=False), "gpu_idle").gpu == 0


# --- unused


def test_unused_gpu_is_named_and_booked():
    engine = fed(minimal.unused_gpu())
    found = [f for f in engine.findings if f.code == "unused_gpu"]
    assert [(f.gpu, f.severity) for f in found] == [(1, Severity.WARNING)]
    assert found[0].evidence["cost_per_hour"] == 2.0
    total = sum(engine.ledger.seconds.values())
    assert engine.ledger.seconds["idle"] == pytest.approx(0.5 * total, rel=0.15)


def test_the_only_gpu_is_unused_when_the_model_is_on_the_cpu():
    build = Build().gpu()
    build.reading[0].update(utilization_ratio=0.0, memory_used_bytes=0.4 * GIB)
    build.allocator.clear()
    assert one(build.start().steps(200).end(), "unused_gpu").gpu == 0


@pytest.mark.parametrize(
    "events",
    [
        minimal.unused_gpu(None),  # it does not tell
        minimal.unused_gpu(0.9),  # it works
        minimal.unused_gpu(0.0, 20 * GIB),  # it holds a model: idle is another matter
        minimal.unused_gpu(steps=60),  # too early
        minimal.visible_gpu(0.6),  # somebody else works on it
        minimal.visible_gpu(visible=False),  # not ours to use
    ],
)
def test_not_unused(events):
    assert "unused_gpu" not in codes(events)


def test_a_visible_gpu_that_nobody_uses():
    found = one(minimal.visible_gpu(), "unused_gpu")
    assert (found.gpu, found.evidence["owned"]) == (1, False)


# --- after the end


def test_finished_and_holding():
    events = minimal.after_end(700.0)
    found = one(events, "finished_holding_gpu")
    end_s = next(e.t_s for e in events if getattr(e, "event", "") == "train_end")
    assert 600.0 <= found.raised_s - end_s <= 620.0
    assert found.evidence["gpus"] == [0]
    assert found.evidence["cost"] == pytest.approx(2.0 * found.evidence["idle_s"] / 3600.0, rel=0.01)
    assert codes(events) == {"finished_holding_gpu"}


@pytest.mark.parametrize(
    "events",
    [
        minimal.after_end(500.0),
        minimal.after_end(900.0, utilization_ratio=0.6),  # works on: an evaluation of its own
        minimal.after_end(900.0, memory_used_bytes=0.0),  # let go
        minimal.after_end(900.0, utilization_ratio=None),
        minimal.after_end(900.0, processes=[Process(pid=1, own=False)]),  # others hold it
        minimal.after_end(900.0, interactive=True),  # a notebook gets half an hour
    ],
)
def test_not_holding(events):
    assert codes(events) & {"finished_holding_gpu", "notebook_idle"} == set()


def test_eight_gpus_are_one_finding():
    build = Build()
    for index in range(8):
        build.gpu(index)
    build.start().steps(60).moment("train_end")
    for reading in build.reading.values():
        reading["utilization_ratio"] = 0.0
    found = one(build.wait(800.0).end(train_end=False), "finished_holding_gpu")
    assert found.gpu is None
    assert found.evidence["gpus"] == list(range(8))


def test_notebook_idle_clears_with_the_next_cell():
    build = Build(interactive=True, framework="loop").gpu().start().steps(60).moment("interrupt")
    build.reading[0]["utilization_ratio"] = 0.0
    build.wait(2400.0)
    build.reading[0]["utilization_ratio"] = 0.95
    events = build.moment("train_begin").steps(60).end()
    found = one(events, "notebook_idle")
    assert found.cleared_s is not None
    assert codes(events) == {"notebook_idle"}


def test_a_process_that_outlives_ctrl_c_is_interactive():
    """Nobody says whether it is a notebook: a script would have ended."""
    events = minimal.after_end(2000.0, moment="interrupt")
    events[0].host.interactive = None
    assert codes(events) == {"notebook_idle"}
    events = minimal.after_end(900.0)
    events[0].host.interactive = None
    assert codes(events) == {"finished_holding_gpu"}


# --- start


def test_slow_start_is_a_note():
    found = one(minimal.slow_start(700.0), "slow_start")
    assert found.severity is Severity.INFO
    assert found.evidence["phases_s"] == {"preprocess": pytest.approx(600.0, abs=15.0)}  # told while it goes on
    assert loud(minimal.slow_start(700.0)) == []


def test_half_an_hour_is_a_warning():
    assert one(minimal.slow_start(1900.0), "slow_start").severity is Severity.WARNING


def test_a_tenth_of_a_short_run():
    found = one(minimal.slow_start(120.0, budget={"steps_total": 600, "step_time_s": 1.0}), "slow_start")
    assert 0.1 <= found.evidence["startup_s"] / found.evidence["planned_run_s"] <= 0.13  # told while it goes on
    assert "slow_start" not in codes(minimal.slow_start(120.0, budget={"steps_total": 6000, "step_time_s": 1.0}))
    assert "slow_start" not in codes(minimal.slow_start(40.0, budget={"steps_total": 100, "step_time_s": 1.0}))


def test_a_notebook_user_may_think_first():
    build = Build(interactive=True, framework="loop").gpu()
    assert "slow_start" not in codes(build.wait(3000.0).start().steps(60).end())


# --- recompile


@pytest.mark.parametrize(
    "events",
    [
        minimal.recompile(settings={"torch_compile": True}),
        minimal.recompile(settings={"torch_compile": True}, busy=False),  # idleness by utilization
        minimal.recompile(first_s=60.0),  # nobody says so, but the first step was a compilation
        minimal.recompile(counted=True),  # the compiler counts
        minimal.recompile(180.0, first_s=120.0, settings={"torch_compile": True}),
    ],
)
def test_recompile(events):
    found = one(events, "recompile")
    assert found.severity is Severity.INFO
    assert found.evidence["count"] == 1
    assert found.evidence["duration_s"] >= 80.0
    assert loud(events) == []


def test_the_compilers_counter_is_read_after_the_fact():
    """No GPU, so no idleness: the counter alone tells, some steps later."""
    build = Build().start().steps(60, 0.5)
    build.steps(1, 20.0, wait_s=0.0).steps(5, 0.5)
    build.add(Progress(t_s=build.t, recompiles=3.0))
    assert one(build.steps(60, 0.5).end(), "recompile").evidence["step"] == 61


def test_recompile_is_booked_as_warm_up():
    engine = fed(minimal.recompile(80.0, settings={"torch_compile": True}))
    assert engine.ledger.seconds["warmup"] == pytest.approx(79.5, abs=2.0)


def test_series_of_recompiles_is_a_warning():
    found = one(minimal.recompile(20.0, times=4, settings={"torch_compile": True}), "recompile")
    assert found.severity is Severity.WARNING


@pytest.mark.parametrize(
    "events",
    [
        minimal.recompile(80.0),  # nothing compiles here
        minimal.recompile(80.0, settings={"torch_compile": True}, gpu_works=True),  # a long batch
        minimal.recompile(1.2, settings={"torch_compile": True}),  # a stutter
    ],
)
def test_other_long_steps(events):
    assert "recompile" not in codes(events)


def test_no_recompile_within_a_collection_of_garbage():
    build = Build(settings={"torch_compile": True}).gpu().start().steps(60, 0.5, gpu_busy_s=0.48)
    start = build.t
    build.reading[0]["utilization_ratio"] = 0.0
    build.wait(5.0).moment("gc", generation=2, duration_s=4.9)
    build.step += 1
    build.events.append(Step(t_s=build.t, step=build.step, start_s=start, data_wait_s=0.0, gpu_busy_s=0.2))
    build.reading[0]["utilization_ratio"] = 0.95
    assert "recompile" not in codes(build.steps(60, 0.5, gpu_busy_s=0.48).end())


def test_progress_without_a_counter_is_no_recompile():
    build = Build().gpu().start().steps(60, 0.5)
    build.add(Progress(t_s=build.t, phase="eval", items_done=3.0))
    assert "recompile" not in codes(build.steps(60, 0.5).end())
