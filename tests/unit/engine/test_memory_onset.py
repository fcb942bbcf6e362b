"""Growth that begins late, and growth that the end of the first epoch may give back."""

from __future__ import annotations

import math

import pytest

from trainbudget.findings import Severity
from unit.engine.feeding import fed, findings, loud
from unit.engine.minimal.memory import card, course
from unit.engine.traces import GIB

FLAT, RISE = 600, 0.05  # steps, GiB a step


def late(steps: int, *, limit: float = 40.0):
    """15 GiB at rest for 600 steps, then 50 MiB more in each; 10 GiB of transients."""
    build = card(limit, budget={"steps_total": 100_000}).start()
    wobble = lambda n: 0.01 * math.sin(2.4 * n)  # noqa: E731
    return course(
        build,
        FLAT + steps,
        lambda n: {"rest": 15.0 + wobble(n) + RISE * max(0, n - FLAT), "peak": 25.0 + RISE * max(0, n - FLAT)},
    )


def test_a_leak_that_begins_late_is_forecast_by_its_own_line():
    found = findings(late(150).end("interrupted"), "oom_forecast")
    assert len(found) == 1
    meets = FLAT + (40.0 - 0.45 - 25.0) / RISE  # the limit less context, less what a step needs beside the growth
    assert found[0].forecast.at_step == pytest.approx(meets, rel=0.02)
    assert found[0].raised_s < FLAT + 140.0


def test_a_late_leak_is_seen_although_few_lines_of_it_are_kept():
    raised = findings(late(150).end("interrupted"), "memory_leak")
    assert raised[0].raised_s < FLAT + 150.0
    assert raised[0].evidence["bytes_per_step"] == pytest.approx(RISE * GIB, rel=0.05)


def test_one_stair_late_is_no_leak():
    build = card(budget={"steps_total": 100_000}).start()
    course(build, 900, lambda n: {"rest": 15.0 + (6.0 if n > 500 else 0.0), "peak": 25.0 + (6.0 if n > 500 else 0.0)})
    assert loud(build.end()) == []


def test_what_has_come_and_gone_before_is_no_late_leak():
    """Outputs kept between two logs: the second tooth is as high as the first."""
    build = card(budget={"steps_total": 100_000}).start()
    course(build, 100, lambda n: {"rest": 15.0, "peak": 25.0})
    course(build, 900, lambda n: {"rest": 15.0 + 0.01 * ((n - 100) % 300), "peak": 25.0 + 0.01 * ((n - 100) % 300)})
    later = [f for f in fed(build.end()).findings if f.code in ("oom_forecast", "memory_leak") and f.raised_s > 450.0]
    assert later == []


def epochs(steps: int, *, rise: float, falls: bool, planned: int = 3, each: int = 300):
    """Growth within epochs of 300 steps, of which as many are planned."""
    settings = {"num_train_epochs": planned}
    build = card(60.0, settings=settings, budget={"steps_total": planned * each}).start()
    for first in range(0, steps, each):
        build.moment("epoch_begin")
        base = 0 if falls else first
        course(
            build,
            min(each, steps - first),
            lambda n, first=first, base=base: {
                "rest": 15.0 + rise * (n - first + base),
                "peak": 25.0 + rise * (n - first + base),
            },
        )
        build.moment("epoch_end")
    return build


def test_growth_that_the_first_epoch_gives_back_alarms_nobody():
    assert loud(epochs(900, rise=0.05, falls=True).end()) == []


def test_until_the_first_epoch_ends_growth_is_information():
    found = findings(epochs(280, rise=0.05, falls=True).end("interrupted"), "memory_leak")
    assert [f.severity for f in found] == [Severity.INFO]


def test_growth_that_the_first_epoch_does_not_give_back_is_forecast_at_its_end():
    found = findings(epochs(400, rise=0.05, falls=False).end("interrupted"), "oom_forecast")
    assert len(found) == 1
    assert 300.0 < found[0].raised_s < 340.0


def test_a_limit_inside_the_first_epoch_waits_for_nothing():
    found = findings(epochs(200, rise=0.12, falls=True).end("interrupted"), "oom_forecast")
    assert len(found) == 1
    assert found[0].raised_s < 150.0


def test_a_single_epoch_gives_nothing_back():
    found = findings(epochs(200, rise=0.05, falls=True, planned=1, each=3000).end("interrupted"), "oom_forecast")
    assert len(found) == 1


def test_at_an_epochs_end_the_next_line_tells():
    """Its length is unknown: the growth becomes due just when the epoch ends, and is given back a step later."""
    build = card(60.0, budget={"steps_total": 3000}).start().moment("epoch_begin")
    course(build, 70, lambda n: {"rest": 15.0 + 0.2 * n, "peak": 20.0 + 0.2 * n})
    due = findings([*build.events], "oom_forecast")
    assert due == []
    build.moment("epoch_end").wait(12.0).moment("epoch_begin")
    course(build, 60, lambda n: {"rest": 15.0 + 0.2 * (n - 70), "peak": 20.0 + 0.2 * (n - 70)})
    assert findings(build.end("interrupted"), "oom_forecast") == []
