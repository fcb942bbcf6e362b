"""A hole in the record is a sleep; lines that always come far apart are not."""

from __future__ import annotations

import pytest

from trainbudget.events import Event, Header, Step
from unit.engine.feeding import fed
from unit.engine.traces import Build


def test_steps_of_a_minute_without_any_other_line_are_no_sleep():
    events = [Header(framework="loop"), Event(t_s=1.0, event="train_begin")]
    for step in range(1, 31):
        start_s = 5.0 + 55.0 * (step - 1)
        events.append(Step(t_s=start_s + 55.0, step=step, start_s=start_s, data_wait_s=0.005))
    engine = fed(events)
    assert engine.timeline.gaps_s <= 110.0  # the first may be one
    assert engine.timeline.steps.median_s() == pytest.approx(55.0)
    assert [f for f in engine.findings if f.code == "input_bound"] == []


def test_two_nights_are_two_nights():
    build = Build().gpu().start(10.0).steps(300, 1.0)
    for _ in range(2):
        build.t += 30000.0
        build._next_reading = build._next_host = build.t
        build.steps(300, 1.0)
    engine = fed(build.end())
    assert engine.timeline.gaps_s == pytest.approx(60000.0, rel=0.01)
