"""Devices that do not tell their utilization: power says whether they rest."""

from __future__ import annotations

import pytest

from unit.engine.feeding import fed, findings, loud
from unit.engine.traces import GIB, Build

IDLE_W, WORK_W = 60.0, 320.0


def blind(**header) -> Build:
    """A run on a card that tells power and no utilization."""
    build = Build(**header).gpu()
    build.reading[0].update(utilization_ratio=None, power_w=IDLE_W)
    build.start(20.0)
    build.reading[0]["power_w"] = WORK_W
    return build.steps(100, 1.0)


def after(build: Build, power_w: float | None, seconds: float = 1000.0, event: str = "train_end") -> Build:
    build.moment(event)
    build.reading[0]["power_w"] = power_w
    return build.wait(seconds)


@pytest.mark.parametrize("power_w", [IDLE_W, 85.0, 140.0])
def test_a_finished_process_at_rest_holds_the_gpu(power_w):
    found = findings(after(blind(), power_w).end(train_end=False), "finished_holding_gpu")
    assert len(found) == 1
    assert found[0].evidence["idle_s"] >= 600.0


def test_a_notebook_at_rest_holds_the_gpu():
    events = after(blind(interactive=True), IDLE_W, 2500.0, "interrupt").end(train_end=False)
    assert len(findings(events, "notebook_idle")) == 1


@pytest.mark.parametrize("power_w", [200.0, None])
def test_work_after_the_end_and_unknown_power_are_no_rest(power_w):
    assert loud(after(blind(), power_w).end(train_end=False)) == []


def test_power_that_comes_and_goes_is_work():
    build = blind().moment("train_end")
    for _ in range(120):
        build.reading[0]["power_w"] = 110.0
        build.wait(6.0)
        build.reading[0]["power_w"] = 150.0
        build.wait(4.0)
    assert loud(build.end(train_end=False)) == []


def test_a_slice_of_a_card_shares_its_power_and_says_nothing():
    build = Build().gpu(mig=True)
    build.reading[0].update(utilization_ratio=None, power_w=IDLE_W)
    build.start(20.0).steps(100, 1.0)
    assert loud(after(build, IDLE_W).end(train_end=False)) == []


def second_card(power_w: float) -> Build:
    """Two cards that tell no utilization; nothing of ours is on the second one."""
    build = Build().gpu(0).gpu(1)
    for index in (0, 1):
        build.reading[index].update(utilization_ratio=None, power_w=IDLE_W)
    build.reading[1].update(memory_used_bytes=0.4 * GIB, memory_free_bytes=79 * GIB)
    del build.allocator[1]
    build.start(20.0)
    build.reading[0]["power_w"] = WORK_W
    build.reading[1]["power_w"] = power_w
    return build.steps(300, 1.0)


def test_a_second_card_at_rest_all_the_time_is_unused():
    found = findings(second_card(IDLE_W + 1.0).end(), "unused_gpu")
    assert [f.gpu for f in found] == [1]
    engine = fed(second_card(IDLE_W + 1.0).end())
    assert engine.ledger.seconds["idle"] > 0.4 * engine.ledger.total_s


def test_a_second_card_that_draws_more_than_before_is_used():
    assert findings(second_card(110.0).end(), "unused_gpu") == []


def test_a_small_model_at_a_fifth_of_the_power_limit_is_no_idle_card():
    build = Build().gpu()
    build.reading[0].update(utilization_ratio=None, power_w=20.0, memory_used_bytes=0.8 * GIB)
    build.allocator.clear()
    build.start(20.0)
    build.reading[0]["power_w"] = 90.0
    assert loud(build.steps(300, 1.0).end()) == []
