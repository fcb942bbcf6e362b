"""Two things at once: which one is named, and what the other may not be taken for."""

from __future__ import annotations

import pytest

from trainbudget.events import Allocator, Process
from unit.engine.feeding import findings
from unit.engine.minimal.memory import card, course, evaluation, fail, flat, hold, spill
from unit.engine.traces import GIB


def listed(others: float, foreign: float | None = None, *, own: float = 30.5):
    """The driver lists us, and somebody else or not; `others` GiB more are in use than we hold."""
    rows = [Process(pid=1, memory_bytes=own * GIB, own=True)]
    if foreign is not None:
        rows.append(Process(pid=2, memory_bytes=foreign * GIB, own=False))
    build = course(card(60.0).start(), 40, flat(15.0, 30.0))
    build.reading[0]["processes"] = rows
    return course(build, 60, flat(15.0, 30.0, others=others)).end("interrupted")


def test_a_neighbour_that_the_driver_does_not_list():
    found = findings(listed(6.0), "foreign_memory")
    assert len(found) == 1
    assert found[0].evidence["others_bytes"] == pytest.approx(6.0 * GIB, rel=0.02)


def test_of_two_neighbours_one_is_listed():
    found = findings(listed(9.0, 3.0), "foreign_memory")
    assert found[0].evidence["others_bytes"] == pytest.approx(9.0 * GIB, rel=0.02)


@pytest.mark.parametrize("events", [listed(0.0), listed(0.5), listed(6.0, own=36.5)])
def test_nobody_is_hidden_where_the_rows_hold_what_is_in_use(events):
    assert findings(events, "foreign_memory") == []


def micro_batches(peak: float, state: float):
    """The first step never ends: its micro-batches fit, its optimizer step does not; nobody says which phase it was."""
    build = card(budget={"optimizer_state_bytes": state * GIB}).start()
    for _ in range(5):
        hold(build, 12.0, peak).wait(4.0)
        build.add(Allocator(gpu=0, at="sample", **build.allocator[0]))
    return fail(build, 1.0, reserved=39.3).end("failed", train_end=False)


@pytest.mark.parametrize(("peak", "state", "cause"), [(25.0, 20.0, "optimizer_state"), (25.0, 5.0, "true_capacity")])
def test_states_that_cannot_fit_beside_the_micro_batches(peak, state, cause):
    assert findings(micro_batches(peak, state), "oom")[0].cause == cause


def test_room_is_not_judged_while_an_evaluation_fills_it():
    assert findings(evaluation(batches=61).end("interrupted"), "memory_pressure") == []


def test_the_first_slow_step_on_a_full_card_may_be_a_spill():
    events = spill(slow=60.0)
    assert findings(events, "memory_pressure") == []
    assert len(findings(events, "system_memory_spill")) == 1


def test_a_neighbour_beside_a_cache_that_grows_all_the_time():
    build = course(card(80.0).start(), 40, flat(15.0, 25.0))
    course(build, 60, lambda n: {"rest": 15.0, "peak": 25.0, "reserved": 25.0 + 0.4 * (n - 40), "others": 8.0})
    found = findings(build.end("interrupted"), "foreign_memory")
    assert len(found) == 1
    assert found[0].evidence["others_bytes"] == pytest.approx(8.0 * GIB, rel=0.1)


def test_a_cache_that_grows_all_the_time_is_nobody_elses():
    build = course(card(80.0).start(), 40, flat(15.0, 25.0))
    course(build, 60, lambda n: {"rest": 15.0, "peak": 25.0, "reserved": 25.0 + 0.4 * (n - 40)})
    assert findings(build.end("interrupted"), "foreign_memory") == []
