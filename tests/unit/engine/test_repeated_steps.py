"""Steps that are done once more after a resume are lost: as told, or as the record itself has seen them."""

from __future__ import annotations

import pytest

from unit.engine.feeding import fed
from unit.engine.traces import Build


def restarted(left: str, *, at: int = 60, **resume: int) -> Build:
    """100 steps, an end, a new start from the checkpoint at `at`, 100 steps more."""
    build = Build().gpu().start(10.0).steps(100, 1.0, wait_s=0.0)
    build.moment(left).wait(5.0).moment("train_begin").moment("resume", step=at, **resume)
    build.step = at
    return build.steps(100, 1.0, wait_s=0.0)


def lost(build: Build) -> float:
    return fed(build.end()).ledger.seconds.get("lost", 0.0)


@pytest.mark.parametrize("left", ["exception", "interrupt"])
def test_steps_that_the_record_has_seen_are_lost(left):
    base = 1.0 if left == "exception" else 0.0  # the step that failed
    assert lost(restarted(left)) == pytest.approx(40.0 + base, abs=1.5)


def test_what_is_told_counts_more():
    assert lost(restarted("interrupt", highest_step=80)) == pytest.approx(20.0, abs=1.0)


def test_after_an_end_in_peace_it_may_be_another_run():
    assert lost(restarted("train_end")) == 0.0


def test_nothing_is_repeated_from_the_last_step_on():
    assert lost(restarted("interrupt", at=100)) == 0.0
