"""What makes no sense is unknown before anybody computes with it."""

from __future__ import annotations

import math

import pytest

from trainbudget.engine.intake import sane
from trainbudget.events import Allocator, Event, Gpu, Header, LongBatch, Plan, Reading, Step, Tick


def test_a_usual_fact_is_passed_on_as_it_is():
    for fact in (
        Reading(t_s=5.0, gpu=0, utilization_ratio=0.0, power_w=300.0, memory_used_bytes=5e10),
        Step(t_s=5.0, step=3, start_s=4.0, data_wait_s=0.0, loss=-2.0),
        Header(process_started_s=-12.0),
        Plan(t_s=5.0, peak_by_tokens=[[512.0, 1e9]]),
        Tick(t_s=5.0),
    ):
        known = sane(fact, 0.0)
        assert known == fact
        if not isinstance(fact, Plan):
            assert known is fact


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1.0, 1e300])
def test_numbers_that_cannot_be_are_unknown(bad):
    assert sane(Reading(t_s=1.0, gpu=0, power_w=bad, temperature_c=60.0), 0.0) == Reading(t_s=1.0, gpu=0, temperature_c=60.0)
    assert sane(Allocator(t_s=1.0, gpu=0, allocated_bytes=bad), 0.0).allocated_bytes is None
    assert sane(Gpu(gpu=0, memory_limit_bytes=bad), 0.0).memory_limit_bytes is None
    step = sane(Step(t_s=1.0, step=1, data_wait_s=bad, forward_s=0.5), 0.0)
    assert (step.data_wait_s, step.forward_s) == (None, 0.5)


def test_losses_keep_what_they_are():
    step = sane(Step(t_s=1.0, step=1, loss=math.nan, grad_norm=math.inf, tokens=-3.0), 0.0)
    assert math.isnan(step.loss)
    assert step.grad_norm == math.inf
    assert step.tokens is None


@pytest.mark.parametrize("t_s", [math.nan, 3.0, -1e9, math.inf, -math.inf])
def test_time_never_goes_back_or_to_infinity(t_s):
    assert sane(Tick(t_s=t_s), 10.0).t_s == 10.0


def test_a_step_may_begin_before_the_runs_zero_but_not_nowhere():
    assert sane(Step(t_s=1.0, step=1, start_s=-2.0), 0.0).start_s == -2.0
    assert sane(Step(t_s=1.0, step=1, start_s=math.nan), 0.0).start_s is None


def test_nested_numbers_too():
    plan = sane(
        Plan(
            peak_by_tokens=[[512.0, math.nan], [1024.0, 2e9], [7.0], [-1.0, 5.0]],
            longest=[LongBatch(step=3, tokens=math.inf), LongBatch(step=4, tokens=9.0)],
            phase_peaks={"eval": math.nan, "save": 3e9},
        ),
        0.0,
    )
    assert plan.peak_by_tokens == [[1024.0, 2e9]]
    assert plan.longest == [LongBatch(step=4, tokens=9.0)]
    assert plan.phase_peaks == {"save": 3e9}
    event = sane(Event(event="oom", detail={"requested_bytes": math.inf, "gpu": 0, "message": "x"}), 0.0)
    assert event.detail == {"gpu": 0, "message": "x"}


def test_the_callers_fact_is_never_changed():
    step = Step(t_s=1.0, step=1, data_wait_s=-1.0)
    sane(step, 5.0)
    assert (step.t_s, step.data_wait_s) == (1.0, -1.0)
