"""The cache, the edge, others on the device, what was left behind, evaluation, spill: raised, and silent beside."""

from __future__ import annotations

import pytest

from trainbudget.events import Allocator, Model, Phase, PhaseBegin, Process
from trainbudget.findings import Severity
from unit.engine.feeding import fed, findings, loud
from unit.engine.minimal.memory import (
    card,
    course,
    evaluation,
    fail,
    flat,
    flushes,
    foreign,
    fragmentation,
    hold,
    leftover,
    memory_over_budget,
    resumed,
    siblings,
    spill,
    stale,
)
from unit.engine.traces import GIB


def one(events, code):
    found = findings(events, code)
    assert len(found) == 1, [f.name for f in findings(events)]
    return found[0]


# --- the cache


def test_a_cache_that_ratchets_is_fragmented():
    found = one(fragmentation().end("interrupted"), "memory_fragmentation")
    assert found.evidence["excess_bytes"] > 10 * GIB
    assert findings(fragmentation().end("interrupted"), "memory_leak") == []


def test_retries_make_it_matter_before_the_device_is_full():
    build = card().start()
    course(build, 60, lambda n: {"rest": 10.0, "peak": 15.0, "reserved": 15.0 + 0.1 * n, "alloc_retries": n // 20})
    assert one(build.end("interrupted"), "memory_fragmentation").evidence["retries"] >= 1


def test_a_cache_with_room_around_it_is_no_matter():
    build = card().start()
    course(build, 100, lambda n: {"rest": 10.0, "peak": 15.0, "reserved": 15.0 + 0.1 * n})
    assert loud(build.end()) == []


def test_what_a_long_batch_once_needed_is_no_fragmentation():
    build = card().start()
    course(build, 100, lambda n: {"rest": 15.0, "peak": 36.0 if n % 30 == 1 else 18.0, "reserved": 36.2})
    assert findings(build.end(), "memory_fragmentation") == []


def test_the_cache_of_a_failed_attempt_is_no_ratchet():
    build = course(card().start(batch_size=32), 10, flat(10.0, 30.0))
    fail(build, 9.0, reserved=39.0, end=False)
    build.step = 0
    build.wait(2.0).moment("train_begin", batch_size=16)
    course(build, 100, flat(10.0, 20.0, reserved=39.0))
    assert findings(build.end(), "memory_fragmentation") == []


def test_libraries_beside_a_cache_that_takes_everything():
    build = card(world_size=8).start()
    course(build, 100, lambda n: {"rest": 10.0, "peak": 15.0, "reserved": min(15.0 + 0.3 * n, 39.2)})
    events = build.end("interrupted")
    assert one(events, "memory_fragmentation").severity is Severity.CRITICAL
    assert findings(events, "memory_pressure") == []


def test_a_little_cache_too_much_where_there_is_no_room_at_all():
    build = card().start()
    course(build, 60, lambda n: {"rest": 30.0, "peak": 37.0, "reserved": 37.0 + min(2.0, 0.05 * n)})
    assert one(build.end("interrupted"), "memory_pressure").evidence["why"] == "starved"


# --- the edge


def test_flushes_in_every_step_slow_the_run():
    found = one(flushes(), "memory_pressure")
    assert found.severity is Severity.WARNING
    assert found.raised_s < 100.0


def test_a_flush_now_and_then_is_no_pressure():
    build = card().start()
    course(build, 200, lambda n: {"rest": 10.0, "peak": 20.0, "alloc_retries": n // 40})
    assert findings(build.end(), "memory_pressure") == []


@pytest.mark.parametrize(("peak", "severity"), [(39.0, Severity.WARNING), (37.0, Severity.INFO), (30.0, None)])
def test_room_above_the_peak(peak, severity):
    found = findings(course(card().start(), 60, flat(6.0, peak)).end(), "memory_pressure")
    assert [f.severity for f in found] == ([] if severity is None else [severity])


def test_at_rest_only_the_weights_are_seen_and_the_peak_counts():
    found = one(course(card().start(), 60, flat(6.0, 39.0)).end(), "memory_pressure")
    assert found.evidence["at_rest_bytes"] == pytest.approx(6 * GIB)
    assert found.evidence["peak_bytes"] == pytest.approx(39 * GIB)


def test_a_peak_of_a_trial_is_not_the_runs():
    build = card().start()
    build.events.append(PhaseBegin(t_s=build.t, phase="trial"))
    hold(build, 5.0, 39.4).wait(2.0)
    build.events.append(Allocator(t_s=build.t, gpu=0, at="phase", **build.allocator[0]))
    build.events.append(Phase(t_s=build.t, phase="trial"))
    assert loud(course(build, 60, flat(5.0, 20.0)).end()) == []


def test_over_budget_beyond_its_interval():
    found = one(memory_over_budget(30.0), "memory_over_budget")
    assert found.evidence["peak_bytes"] == pytest.approx(30 * GIB)
    assert findings(memory_over_budget(21.5), "memory_over_budget") == []


def test_a_peak_counter_that_somebody_resets_means_nothing():
    build = card(budget={"memory_peak_bytes": 30 * GIB, "steps_total": 300}).start()
    course(build, 300, lambda n: {"rest": 10.0, "peak": 12.0 if n % 90 == 0 else 28.0, "reserved": 28.1})
    assert loud(build.end()) == []


# --- others on the device


@pytest.mark.parametrize(("gib", "raised"), [(4.0, True), (1.3, True), (0.5, False)])
def test_another_process_appears(gib, raised):
    found = findings(foreign(gib).end("interrupted"), "foreign_memory")
    assert bool(found) is raised
    if found:
        assert found[0].raised_s > 50.0
        assert found[0].evidence["others_bytes"] == pytest.approx(gib * GIB, rel=0.1)


def test_it_goes_and_the_finding_is_cleared():
    build = foreign(4.0)
    course(build, 120, flat(15.0, 30.0))
    assert one(build.end(), "foreign_memory").cleared_s is not None


def test_a_holder_that_does_nothing_and_one_that_works():
    idle = stale(5.0, busy=0.0).end("interrupted")
    assert one(idle, "stale_holder").evidence["held_bytes"] == pytest.approx(5 * GIB, rel=0.15)
    assert findings(idle, "foreign_memory") == []
    busy = stale(5.0, busy=0.9).end("interrupted")
    assert findings(busy, "stale_holder") == []
    assert len(findings(busy, "foreign_memory")) == 1


def test_what_the_driver_keeps_is_nobody():
    for shown in (True, False):
        build = course(card().start(), 60, flat(15.0, 30.0))
        for event in build.events:
            if type(event).__name__ == "Reading" and not shown:
                event.memory_used_bytes += event.memory_reserved_bytes
                event.memory_reserved_bytes = None
        assert loud(build.end()) == []


@pytest.mark.parametrize(
    "rows",
    [
        [Process(pid=645400, memory_bytes=30.5 * GIB)],
        [],
        [Process(pid=11), Process(pid=12, memory_bytes=0.0), Process(pid=13, memory_bytes=30.5 * GIB)],
        [Process(pid=9, memory_bytes=70 * GIB, alive=True)],
    ],
)
def test_process_lists_of_another_namespace_accuse_nobody(rows):
    build = card().start()
    build.reading[0]["processes"] = rows
    assert loud(course(build, 60, flat(15.0, 30.0)).end()) == []


def test_rows_that_know_us_are_believed_without_an_allocator():
    build = card().start()
    build.allocator.clear()
    build.reading[0].update(
        memory_used_bytes=36 * GIB,
        processes=[Process(pid=1, memory_bytes=30 * GIB, own=True), Process(pid=2, memory_bytes=5.5 * GIB, own=False)],
    )
    assert one(build.steps(60).end("interrupted"), "foreign_memory").evidence["others_bytes"] == pytest.approx(5.5 * GIB)


@pytest.mark.parametrize("rows", [True, False])
def test_contexts_of_sibling_ranks(rows):
    events = siblings(rows=rows).end("interrupted")
    found = one(events, "rank_extra_memory")
    assert found.evidence["source"] == ("processes" if rows else "ranks")
    assert {f.code for f in findings(events)} & {"foreign_memory", "stale_holder", "leftover_memory"} == set()


def test_buffers_of_a_communicator_are_our_own():
    build = card(world_size=8).start()
    assert loud(course(build, 60, flat(15.0, 30.0, others=0.95)).end()) == []


# --- left behind


def test_a_retry_that_holds_more_than_the_attempt_before():
    found = one(leftover(8.0).end("interrupted"), "leftover_memory")
    assert found.severity is Severity.WARNING
    assert found.evidence["excess_bytes"] == pytest.approx(8 * GIB, rel=0.01)
    assert findings(leftover(0.0).end("interrupted"), "leftover_memory") == []


def test_a_second_call_may_be_another_model():
    assert one(leftover(8.0, retry=False).end("interrupted"), "leftover_memory").severity is Severity.INFO
    build = course(card().start(), 20, flat(15.0, 30.0)).moment("train_end")
    build.add(Model(parameters=7e9)).wait(5.0).moment("train_begin")
    assert findings(course(build, 30, flat(23.0, 33.0)).end(), "leftover_memory") == []


def test_a_resume_that_holds_more_than_planned():
    events = resumed(6.0).end("interrupted")
    assert one(events, "resume_excess").evidence["excess_bytes"] == pytest.approx(6 * GIB, rel=0.02)
    assert findings(events, "memory_over_budget") == []
    assert findings(resumed(1.0).end("interrupted"), "resume_excess") == []
    assert findings(resumed(6.0, steps_total=2000).end("interrupted"), "resume_excess") == []


def test_a_copy_that_is_gone_after_loading_is_no_excess():
    build = card(budget={"memory_peak_bytes": 20 * GIB}).start().moment("resume", step=1000)
    build.step = 1000
    course(build, 60, lambda n: {"rest": 12.0, "peak": 26.0 if n == 1001 else 20.0})
    assert findings(build.end(), "resume_excess") == []


# --- evaluation


def test_an_evaluation_that_keeps_its_outputs():
    found = one(evaluation(50).end("interrupted"), "eval_accumulation")
    assert found.severity is Severity.WARNING
    assert found.phase == "eval"
    # Twice what is kept, on top of 15 GiB, meets 39.55 GiB after 30.7 batches of a second each.
    assert found.forecast.at_s == pytest.approx(10 + 30 * 1.01 + 30.7, abs=3.0)


def test_an_evaluation_that_is_flat():
    build = course(card(budget={"steps_total": 1000}).start(), 30, flat())
    for _ in range(3):
        build.events.append(PhaseBegin(t_s=build.t, phase="eval"))
        begin = build.t
        for batch in range(30):
            hold(build, 15.0 + 0.01 * (batch % 4), 22.0).wait(1.0)
            build.events.append(Allocator(t_s=build.t, gpu=0, at="phase", **build.allocator[0]))
        build.events.append(Phase(t_s=build.t, phase="eval", start_s=begin))
        course(build, 20, flat())
    assert loud(build.end()) == []


def test_an_evaluation_that_ends_before_it_is_full_is_only_told():
    build = course(card(budget={"steps_total": 1000}).start(), 30, flat())
    for _ in range(2):
        build.events.append(PhaseBegin(t_s=build.t, phase="eval"))
        begin = build.t
        for batch in range(20):
            hold(build, 15.0 + 0.2 * batch, 15.0 + 0.4 * batch).wait(1.0)
            build.events.append(Allocator(t_s=build.t, gpu=0, at="phase", **build.allocator[0]))
        build.events.append(Phase(t_s=build.t, phase="eval", start_s=begin))
        course(build, 20, flat())
    found = findings(build.end(), "eval_accumulation")
    assert found
    assert all(f.cleared_s is not None for f in found)
    assert findings(build.events, "oom_forecast") == []
    assert findings(build.events, "memory_leak") == []


def test_many_evaluations_take_no_more_memory_than_one():
    build = course(card().start(), 10, flat())
    for _ in range(60):
        build.events.append(PhaseBegin(t_s=build.t, phase="eval"))
        begin = build.t
        for batch in range(12):
            hold(build, 15.0 + 0.2 * batch, 20.0).wait(1.0)
            build.events.append(Allocator(t_s=build.t, gpu=0, at="phase", **build.allocator[0]))
        build.events.append(Phase(t_s=build.t, phase="eval", start_s=begin))
        course(build, 2, flat())
    assert len(fed(build.end()).timeline.gpus[0].memory.cache) < 10


# --- spill


@pytest.mark.parametrize("platform", ["windows", "wsl"])
def test_the_driver_moves_data_to_the_host(platform):
    events = spill(platform)
    assert one(events, "system_memory_spill").evidence["slow_ratio"] == pytest.approx(4.0, rel=0.1)
    assert findings(events, "memory_pressure") == []


def test_nobody_claims_that_on_linux_or_for_slow_steps_with_room():
    assert findings(spill("linux"), "system_memory_spill") == []
    assert findings(spill("windows", slow=1.5), "system_memory_spill") == []
    build = course(card(24.0, platform="windows").start(), 30, flat(10.0, 18.0))
    assert findings(course(build, 20, flat(10.0, 18.0), step_s=5.0).end(), "system_memory_spill") == []


def test_flushes_are_no_spill():
    assert findings(spill("windows", retries=60), "system_memory_spill") == []
