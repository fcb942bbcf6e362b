"""Many random runs: intervals cover what they claim, and calm runs stay silent whatever their noise, cadence and lengths."""

from __future__ import annotations

import math
import random

import pytest

from trainbudget.events import Allocator, Phase, PhaseBegin
from trainbudget.findings import Severity
from unit.engine.feeding import fed
from unit.engine.minimal.memory import CONTEXT, card, hold

RUNS = 40


def leaking(draw: random.Random) -> tuple[list, int]:
    """A leak with noise, and the step at which it really failed."""
    limit = draw.choice([16, 24, 40, 80])
    rest, transient = limit * draw.uniform(0.2, 0.6), limit * draw.uniform(0.02, 0.2)
    steps = int(10 ** draw.uniform(2.2, 2.9))
    slope = (limit - CONTEXT - rest - transient) / steps
    noise = draw.choice([0.0, 0.003, 0.02, 0.08])
    every = draw.choice([1, 2, 5]) if steps > 300 else 1
    build = card(limit, budget={"steps_total": 20000}, sample_period_s=draw.choice([1.0, 5.0])).start()
    step_s = draw.choice([0.3, 1.0, 5.0])
    for step in range(1, 2 * steps):
        level = rest + slope * step + draw.gauss(0.0, noise)
        peak = level + max(0.0, transient + draw.gauss(0.0, noise))
        if peak + CONTEXT > limit:
            return build.end("failed", train_end=False), step
        hold(build, level, peak)
        build.steps(1, step_s, allocator_every=1 if step % every == 0 else 0)
    raise AssertionError("never full")


@pytest.mark.slow
def test_nine_of_ten_forecasts_hold():
    covered, errors = 0, []
    for seed in range(RUNS):
        events, true_step = leaking(random.Random(seed))
        found = [f for f in fed(events).findings if f.code == "oom_forecast"]
        assert found, seed
        forecast = found[0].forecast
        assert forecast is not None
        assert forecast.at_step is not None
        errors.append(abs(forecast.at_step - true_step) / true_step)
        covered += forecast.low <= true_step <= (forecast.high or math.inf)
    assert covered >= 0.9 * RUNS
    assert sorted(errors)[RUNS // 2] < 0.02


def calm(draw: random.Random) -> list:
    """No fault: a level with (correlated) noise, a cache that fills, batches of any length, evaluations, epochs."""
    limit = draw.choice([16, 24, 40, 80])
    rest, transient = limit * draw.uniform(0.2, 0.5), limit * draw.uniform(0.05, 0.35)
    noise, memory = draw.choice([0.0, 0.02, 0.1, 0.3]), draw.choice([0.0, 0.9, 0.99])
    filling, fills = draw.choice([0.0, 0.05 * limit]), draw.choice([3.0, 10.0, 30.0])
    lengths, order = draw.random() < 0.5, draw.choice(["any", "longest", "shortest"])
    world, never_reset = draw.choice([1, 1, 4, 8]), draw.random() < 0.5
    others = draw.uniform(0.0, 0.9) if world > 1 else draw.uniform(0.0, 0.15)
    every, step_s, steps = draw.choice([1, 3, 10]), draw.choice([0.05, 1.0, 5.0]), draw.randrange(60, 500)
    epoch = draw.choice([0, 40, 150])
    build = card(limit, world_size=world, budget={"steps_total": steps * draw.choice([1, 3])}).start()
    wander = highest = reserved = 0.0
    for step in range(1, steps + 1):
        if epoch and step % epoch == 1:
            build.moment("epoch_begin", epoch=step // epoch)
        wander = memory * wander + math.sqrt(1.0 - memory**2) * draw.gauss(0.0, noise)
        level = rest + wander + filling * (1.0 - math.exp(-step / fills))
        length = min(2.2, draw.lognormvariate(0.0, 0.4)) if lengths else 2.2
        if lengths and order != "any":
            share = step / steps
            length = 2.0 - 1.5 * share if order == "longest" else 0.5 + 1.5 * share
        peak = level + transient * length / 2.2
        highest, reserved = max(highest, peak), max(reserved, 1.01 * peak + 0.05)
        hold(build, level, highest if never_reset else peak, reserved=reserved, others=others)
        if never_reset:
            build.allocator[0]["peak_since"] = "process"
        tokens = {"max_sequence_tokens": 1000.0 * length, "tokens": 8000.0 * length, "samples": 8.0} if lengths else {}
        build.steps(1, step_s, allocator_every=1 if step % every == 0 else 0, **tokens)
        if step % 100 == 0:
            build.events.append(PhaseBegin(t_s=build.t, phase="eval"))
            begin = build.t
            for _ in range(10):
                hold(build, level + draw.uniform(0.0, 0.05), level + 0.6 * transient, reserved=reserved, others=others)
                build.wait(step_s)
                build.events.append(Allocator(t_s=build.t, gpu=0, at="phase", **build.allocator[0]))
            build.events.append(Phase(t_s=build.t, phase="eval", start_s=begin))
    return build.end()


@pytest.mark.slow
def test_calm_runs_are_silent():
    alarms = {
        seed: raised
        for seed in range(2 * RUNS)
        if (
            raised := [
                (f.name, f.summary)
                for f in fed(calm(random.Random(seed))).findings
                if f.severity is not Severity.INFO and ("oom" in f.code or "memory" in f.code or f.code == "stale_holder")
            ]
        )
    }
    assert alarms == {}
