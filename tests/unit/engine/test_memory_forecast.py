"""Forecasts: growth at rest, lengths, what will not fit before it is tried; and when nothing may be said."""

from __future__ import annotations

import math
import random

import pytest

from trainbudget.events import Allocator, Bound, BudgetFact, Plan, Step
from trainbudget.findings import Severity
from unit.engine.feeding import findings, loud
from unit.engine.minimal.memory import card, course, flat, hold, leak, longest, optimizer_states, planned_longest
from unit.engine.traces import GIB, healthy


def one(events, code):
    found = findings(events, code)
    assert len(found) == 1, [f.name for f in findings(events)]
    return found[0]


# --- growth at rest


@pytest.mark.parametrize(("mib", "step_s"), [(50.0, 0.2), (100.0, 1.0), (100.0, 30.0), (150.0, 1.0)])
def test_a_leak_is_forecast_at_its_step(mib, step_s):
    # Full when 15 GiB + growth + context meets 40 GiB.
    true_step = (40.0 - 0.45 - 15.0) * 1024 / mib
    found = one(leak(int(true_step * 0.7), mib, step_s=step_s).end("interrupted"), "oom_forecast")
    assert found.forecast is not None
    assert found.forecast.at_step == pytest.approx(true_step, rel=0.03)
    assert found.forecast.low <= true_step * 1.01
    assert found.forecast.high >= true_step * 0.99
    assert found.forecast.at_s == pytest.approx(10.0 + true_step * (step_s + 0.01), rel=0.05)
    assert found.evidence["bytes_per_step"] == pytest.approx(mib * 2**20, rel=0.02)


def test_a_leak_says_cause_and_consequence():
    events = leak(200).end("interrupted")
    assert {"memory_leak", "oom_forecast"} == {f.code for f in loud(events)}


def test_noise_does_not_hide_a_leak():
    wobble = lambda n: 0.03 * math.sin(7.0 * n) + 0.02 * math.cos(3.1 * n)  # noqa: E731
    build = card(budget={"steps_total": 2000}).start()
    course(build, 300, lambda n: {"rest": 10 + n * 0.05 + wobble(n), "peak": 15 + n * 0.05 + wobble(n + 5)})
    found = one(build.end("interrupted"), "oom_forecast")
    assert found.forecast.at_step == pytest.approx((39.55 - 15) / 0.05, rel=0.05)


def test_noise_alone_is_no_leak():
    wobble = lambda n: 0.3 * math.sin(7.0 * n) + 0.2 * math.cos(3.1 * n)  # noqa: E731
    build = card(budget={"steps_total": 2000}).start()
    course(build, 400, lambda n: {"rest": 15 + wobble(n), "peak": 20 + wobble(n)})
    assert loud(build.end()) == []


def test_stairs_over_epochs_are_a_leak():
    build = card(budget={"steps_total": 2000}).start()
    for epoch in range(16):
        build.moment("epoch_begin", epoch=epoch)
        course(build, 20, lambda n, e=epoch: {"rest": 10 + 0.6 * e, "peak": 14 + 0.6 * e})
        build.moment("epoch_end", epoch=epoch)
    found = findings(build.end("interrupted"), "oom_forecast")
    assert found
    assert found[0].forecast.at_step == pytest.approx((39.55 - 14) / 0.03, rel=0.1)


def test_what_an_epoch_gives_back_is_no_leak():
    build = card(budget={"steps_total": 20000}).start()
    for epoch in range(10):
        build.moment("epoch_begin", epoch=epoch)
        begin = build.step
        course(build, 60, lambda n, b=begin: {"rest": 10 + 0.004 * (n - b), "peak": 14 + 0.004 * (n - b)})
        build.moment("epoch_end", epoch=epoch)
    assert loud(build.end()) == []


def test_lowest_levels_that_rise_are_a_leak_though_epochs_give_most_back():
    build = card(budget={"steps_total": 20000}).start()
    for epoch in range(20):
        build.moment("epoch_begin", epoch=epoch)
        begin = build.step
        course(
            build,
            20,
            lambda n, b=begin, e=epoch: {"rest": 10 + 0.3 * e + 0.1 * (n - b), "peak": 16 + 0.3 * e + 0.1 * (n - b)},
        )
        build.moment("epoch_end", epoch=epoch)
    found = findings(build.end("interrupted"), "memory_leak")
    assert found
    assert found[0].evidence["by"] == "epochs"


def test_a_cache_that_fills_is_no_leak():
    build = card(budget={"steps_total": 5000}).start()
    course(build, 300, lambda n: {"rest": 10 + 4 * (1 - math.exp(-n / 15)), "peak": 18 + 4 * (1 - math.exp(-n / 15))})
    assert loud(build.end()) == []


def test_optimizer_states_in_the_first_step_are_no_leak():
    build = card(budget={"steps_total": 500}).start()
    course(build, 200, lambda n: {"rest": 5.0 if n == 1 else 20.0, "peak": 25.0})
    assert loud(build.end()) == []


def test_a_leak_that_the_run_outlasts_not_is_only_told():
    events = leak(400, 10.0, total=600).end("interrupted")
    assert findings(events, "oom_forecast") == []
    assert one(events, "memory_leak").severity is Severity.INFO


def test_a_slice_of_unknown_size_gets_no_forecast():
    build = card(gpu={"mig": True, "memory_limit_bytes": None}, budget={"steps_total": 2000}).start()
    course(build, 300, lambda n: {"rest": 10 + n * 0.1, "peak": 15 + n * 0.1})
    events = build.end("interrupted")
    assert findings(events, "oom_forecast") == []
    assert one(events, "memory_leak").forecast is None


def test_nothing_is_drawn_further_than_five_times_what_was_seen():
    events = leak(100, 20.0, total=None).end("interrupted")  # 1250 steps away after 100
    assert findings(events, "oom_forecast") == []


def test_without_an_allocator_the_device_is_watched():
    build = card(budget={"steps_total": 1000}).start()
    build.allocator.clear()
    for n in range(200):
        build.reading[0].update(memory_used_bytes=(12 + n * 0.1) * GIB, utilization_ratio=0.9)
        build.steps(1, 1.0)
    events = build.end("interrupted")
    found = one(events, "oom_forecast")
    assert found.evidence["source"] == "device"
    assert found.forecast.at_step == pytest.approx(280, rel=0.05)
    assert findings(events, "memory_leak") == []


def test_counters_that_are_never_reset_serve_as_well():
    events = leak(150).end("interrupted")
    highest = 0.0
    for event in events:
        if isinstance(event, Allocator) and event.peak_allocated_bytes is not None:
            highest = max(highest, event.peak_allocated_bytes)
            event.peak_allocated_bytes, event.peak_since = highest, "process"
    assert one(events, "oom_forecast").forecast.at_step == pytest.approx(251, rel=0.03)


def test_lines_taken_at_any_moment_show_their_floor():
    """A sampler that knows nothing of steps sees the middle of them: only the lowest of several lines is at rest."""
    draw = random.Random(4)
    build = card(budget={"steps_total": 1000}).start()
    for n in range(1, 200):
        for part in range(4):
            rest = 10 + n * 0.1
            hold(build, rest + (0.0 if part == 0 else draw.uniform(0.0, 8.0)), rest + 8.0).wait(0.25)
            build.events.append(Allocator(t_s=build.t, gpu=0, at="sample", **build.allocator[0]))
        build.step = n
        build.events.append(Step(t_s=build.t, step=n, start_s=build.t - 1.0))
    found = one(build.end("interrupted"), "oom_forecast")
    assert found.forecast.at_step == pytest.approx((39.55 - 18) / 0.1, rel=0.05)


def test_a_calm_run_whose_lines_are_taken_at_any_moment_is_silent():
    draw = random.Random(4)
    build = card(budget={"steps_total": 1000}).start()
    for n in range(1, 300):
        for _ in range(3):
            hold(build, 10 + draw.uniform(0.0, 8.0), 18.0).wait(0.33)
            build.events.append(Allocator(t_s=build.t, gpu=0, at="sample", **build.allocator[0]))
        build.step = n
        build.events.append(Step(t_s=build.t, step=n, start_s=build.t - 1.0))
    assert loud(build.end()) == []


def test_unified_memory_is_limited_by_the_host():
    build = card(gpu={"unified_memory": True, "memory_limit_bytes": None}, host_period_s=5.0, budget={"steps_total": 1000})
    build.start()
    for n in range(1, 150):
        build.host["memory_available_bytes"] = (30.0 - n * 0.1) * GIB
        course(build, 1, lambda _, n=n: {"rest": 10 + n * 0.1, "peak": 12 + n * 0.1})
    found = one(build.end("interrupted"), "oom_forecast")
    assert found.evidence["limit_source"] == "host memory"
    assert found.forecast.at_step == pytest.approx((42 - 0.45 - 12) / 0.1, rel=0.1)


# --- lengths


def test_the_longest_batch_is_forecast_and_is_no_leak():
    events = longest(60).end("interrupted")
    found = one(events, "oom_forecast")
    assert found.evidence["predicted_bytes"] == pytest.approx((10 + 9000 * 4 / 1024) * GIB, rel=0.01)
    assert findings(events, "memory_leak") == []


def test_a_longest_batch_that_fits_is_silent():
    assert loud(longest(60, known=6000.0).end()) == []


def test_longest_first_is_silent():
    build = card(budget={"max_sequence_tokens": 5000.0, "steps_total": 400}).start()
    for n in range(300):
        tokens = 5000.0 - 15.0 * n
        hold(build, 10.0, 10.0 + tokens * 4 / 1024, reserved=30.0)
        build.steps(1, 1.0, allocator_every=1, tokens=tokens, max_sequence_tokens=tokens, samples=1.0)
    assert loud(build.end()) == []


def test_lengths_that_explain_nothing_forecast_nothing():
    build = card(budget={"max_sequence_tokens": 90000.0, "steps_total": 400}).start()
    for n in range(100):
        tokens = 1000.0 + 500.0 * (7 * n % 9)
        hold(build, 10.0, 20.0 + 0.2 * ((5 * n) % 11))
        build.steps(1, 1.0, allocator_every=1, tokens=tokens, max_sequence_tokens=tokens, samples=1.0)
    assert loud(build.end()) == []


def test_the_plan_knows_the_step_of_the_longest_batch():
    found = one(planned_longest(), "oom_predicted")
    assert found.forecast.at_step == 400
    later = findings(planned_longest(), "oom_forecast")
    assert len(later) == 1
    assert later[0].forecast.at_step == 400
    assert later[0].forecast.at_s == pytest.approx(10 + 400 * 1.01, rel=0.05)


# --- before it is tried


def test_the_plan_does_not_fit():
    build = card(budget={"memory_peak_bytes": Bound(value=45 * GIB, low=41 * GIB, high=50 * GIB, source="plan")})
    found = one(build.start().end("failed"), "oom_predicted")
    assert found.severity is Severity.CRITICAL
    assert found.evidence["source"] == "plan"
    assert found.raised_s <= 6.0


def test_a_plan_that_may_fit_is_a_warning_and_one_that_fits_silent():
    may = card(budget={"memory_peak_bytes": Bound(value=41 * GIB, low=38 * GIB, high=44 * GIB)}).start().end("failed")
    assert one(may, "oom_predicted").severity is Severity.WARNING
    fits = card(budget={"memory_peak_bytes": Bound(value=38 * GIB, low=35 * GIB, high=42 * GIB)}).start().end("failed")
    assert findings(fits, "oom_predicted") == []


def test_a_plan_is_no_longer_judged_once_a_step_has_fitted():
    build = course(card(budget={"memory_peak_bytes": 39 * GIB}).start(), 5, flat())
    build.add(BudgetFact(memory_peak_bytes=50 * GIB))
    assert findings(course(build, 20, flat()).end(), "oom_predicted") == []


def test_optimizer_states_are_added_to_the_first_micro_batches():
    found = one(optimizer_states(30.0).end("failed"), "oom_predicted")
    assert found.evidence["needed_bytes"] == pytest.approx(45 * GIB)
    assert found.evidence["state_bytes"] == pytest.approx(30 * GIB)
    assert findings(optimizer_states(16.0, fit=True).end("interrupted"), "oom_predicted") == []


def test_states_that_are_there_already_are_not_added_again():
    build = card(budget={"optimizer_state_bytes": 14 * GIB}).start()
    for rest in (8.0, 8.0, 8.0, 22.0):
        hold(build, rest, rest + 7.0).wait(5.0)
        build.add(Allocator(gpu=0, at="sample", **build.allocator[0]))
    assert findings(build.wait(10.0).end("interrupted"), "oom_predicted") == []


def test_plain_adam_is_arithmetic_and_what_is_sharded_is_unknown():
    def run(world):
        build = card(world_size=world).model(trainable_parameters=4e9, parameter_dtype="float32", optimizer="AdamW").start()
        for _ in range(4):
            hold(build, 8.0, 15.0).wait(5.0)
            build.add(Allocator(gpu=0, at="sample", **build.allocator[0]))
        return findings(build.end("interrupted"), "oom_predicted")

    assert run(1)[0].evidence["state_bytes"] == pytest.approx(32e9)
    assert run(8) == []


def test_a_phase_that_has_come_and_fitted_is_known():
    build = course(card(budget={"checkpoint_gather_bytes": 28 * GIB}).start(), 10, flat())
    build.phase("save", 5.0)
    found = findings(course(build, 200, flat()).end(), "oom_next_phase")
    assert all(f.cleared_s is not None for f in found)


def test_the_plan_of_an_evaluation_that_does_not_fit():
    build = card(budget={"steps_total": 1000}).add(Plan(phase_peaks={"train": 25 * GIB, "eval": 55 * GIB}))
    found = one(course(build.start(), 40, flat()).end("interrupted"), "oom_next_phase")
    assert found.phase == "eval"
    assert found.severity is Severity.CRITICAL


def test_a_healthy_run_is_silent():
    assert loud(healthy(steps=600)) == []


def test_steps_that_come_merged_are_steps():
    build = card(budget={"steps_total": 100_000}).start()
    for n in range(150):
        hold(build, 10 + n * 0.1, 15 + n * 0.1).wait(1.0)
        build.step += 100
        build.events.append(Step(t_s=build.t, step=build.step, start_s=build.t - 1.0, count=100))
        build.events.append(Allocator(t_s=build.t, gpu=0, at="step_end", step=build.step, **build.allocator[0]))
    found = one(build.end("interrupted"), "oom_forecast")
    assert found.forecast.at_step == pytest.approx(24600, rel=0.05)
