"""Nothing is raised at warning or above on generated hours in which nothing is wrong."""

from __future__ import annotations

import os

import pytest

from healthy.generator import hour
from healthy.physics import draw
from trainbudget.engine.engine import Engine
from trainbudget.findings import Finding, Severity

#: A quick look in every run of the tests; `-m slow` tries a thousand.
FEW = 12
MANY = int(os.environ.get("TRAINBUDGET_HEALTHY_HOURS", "1000"))
CHUNKS = 20


def alarms(seed: int) -> list[Finding]:
    engine = Engine()
    for event in hour(seed):
        engine.feed(event)
    whole = (engine.timeline.wall_s() - engine.timeline.started_s) * max(1, len(engine.timeline.charged))
    assert engine.ledger.total_s == pytest.approx(whole, rel=1e-6), f"seed {seed}"
    return [f for f in engine.findings if f.severity.level >= Severity.WARNING.level]


def described(seed: int, found: list[Finding]) -> list[str]:
    return [f"seed {seed}: {f.name} at {f.raised_s:.0f} s: {f.summary} {f.evidence}" for f in found]


@pytest.mark.parametrize("seed", range(FEW))
def test_a_few_hours(seed):
    assert described(seed, alarms(seed)) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_thousand_hours(chunk):
    bad: list[str] = []
    for seed in range(1000 + chunk, 1000 + MANY, CHUNKS):
        bad += described(seed, alarms(seed))
    assert bad == []


def test_the_same_seed_is_the_same_hour():
    assert hour(3) == hour(3)


def test_hours_are_of_many_kinds():
    kinds = [draw(seed) for seed in range(400)]
    for has in (
        lambda s: s.mig,
        lambda s: s.platform == "wsl",
        lambda s: s.interactive,
        lambda s: s.resumed_at is not None,
        lambda s: s.suspend_at is not None,
        lambda s: s.compile_s > 0,
        lambda s: s.world_size > 1,
        lambda s: s.gpus > 1,
        lambda s: s.allocator == "none",
        lambda s: s.preallocates,
        lambda s: s.unsupported,
        lambda s: s.broken_from_start,
        lambda s: s.lengths == "sorted",
        lambda s: s.step_s < 0.1,
        lambda s: s.step_s > 10,
        lambda s: s.knows_total == "absurd",
    ):
        assert sum(bool(has(s)) for s in kinds) >= 5
