"""The ranks family: who holds the others up, and who failed first; named only where the words tell it."""

from __future__ import annotations

import random

import pytest

from trainbudget.events import Rank
from trainbudget.findings import Severity
from unit.engine.feeding import findings, loud
from unit.engine.minimal import ranks as minimal

RANKS = {"straggler", "rank_imbalance", "rank_failed_first", "communication_bound", "hang", "collective_hang"}


def one(events, code):
    found = findings(events, code)
    assert len(found) == 1, [f.name for f in findings(events)]
    return found[0]


def codes(events):
    return {f.code for f in findings(events)} & RANKS


@pytest.mark.parametrize(
    ("events", "rank", "cause", "excess"),
    [
        (minimal.input_straggler(), 2, "input", 0.29),
        (minimal.clock_straggler(), 1, "clock", 0.25),
        (minimal.unknown_straggler(), 3, "unknown", 0.25),
        (minimal.straggler(1, world_size=2, data_wait_s=0.3), 1, "input", 0.29),
    ],
)
def test_straggler(events, rank, cause, excess):
    found = one(events, "straggler")
    assert (found.rank, found.cause, found.severity) == (rank, cause, Severity.WARNING)
    assert found.evidence["excess_s"] == pytest.approx(excess, abs=0.03)
    assert found.raised_s < 150.0


def test_the_wait_inside_next_counts_not_the_gap():
    """The gap between steps is made equal by what frameworks gather in it."""
    events = minimal.job(
        lambda rank, round_: {"data_wait_s": 0.3, "loader_wait_s": 0.3 if rank == 2 else 0.01}, own={"loader_wait_s": 0.01}
    ).end()
    assert one(events, "straggler").rank == 2


def test_own_rank_is_the_straggler():
    found = one(minimal.job(own={"pre_collective_s": 0.7}).end(), "straggler")
    assert (found.rank, found.cause) == (0, "unknown")


def test_low_clock_without_the_time_before_the_collective():
    events = minimal.job(
        lambda rank, round_: {"pre_collective_s": None, "sm_clock_hz": 0.8e9 if rank == 3 else 1.41e9},
        own={"pre_collective_s": None},
    ).end()
    found = one(events, "straggler")
    assert (found.rank, found.cause, found.evidence["excess_s"]) == (3, "clock", None)


@pytest.mark.parametrize("step_s", [0.1, 5.0])
def test_straggler_at_any_pace(step_s):
    events = minimal.job(minimal.only(2, data_wait_s=0.3 * step_s), step_s=step_s).end()
    assert one(events, "straggler").rank == 2


@pytest.mark.parametrize(
    "events",
    [
        minimal.job().end(),
        minimal.straggler(step_time_s=1.4),  # times that a collective makes equal prove nothing
        minimal.straggler(data_wait_s=0.05),  # a twentieth
        minimal.job(lambda rank, round_: {"data_wait_s": 0.4} if (rank, round_) in {(2, 3), (2, 9)} else {}).end(),  # twice
        minimal.job(minimal.only(2, data_wait_s=0.3), rounds=5).end(),  # too few words
        minimal.job(minimal.only(2, data_wait_s=0.3), rank=1).end(),  # rank 0 speaks for the job
        minimal.job(minimal.only(2, data_wait_s=0.3, state="silent")).end(),
    ],
)
def test_nobody_is_blamed(events):
    assert codes(events) == set()


def test_clocks_of_ranks_that_stand_still_are_asleep():
    build = minimal.job(lambda rank, round_: {"utilization_ratio": None})
    for _ in range(11):
        build.wait(10.0)
        for rank in (1, 2, 3):
            build.add(Rank(t_s=build.t, rank=rank, step=build.step, sm_clock_hz=2.1e8 if rank > 1 else 1.41e9))
    assert "straggler" not in codes(build.end("interrupted", train_end=False))


def test_half_of_the_ranks_are_not_an_exception():
    assert codes(minimal.job(lambda rank, round_: {"data_wait_s": 0.3} if rank >= 2 else {}, world_size=6).end()) == set()


def test_random_batch_lengths_blame_nobody():
    for seed in range(6):
        rng = random.Random(seed)
        events = minimal.job(
            lambda rank, round_, rng=rng: {"pre_collective_s": 0.4 * rng.lognormvariate(0.0, 0.3)}, rounds=60
        ).end()
        assert "straggler" not in codes(events)


def test_words_from_before_training_do_not_count():
    """Ranks say something while they load; those numbers are nobody's habit."""
    build = minimal.job(minimal.only(2, data_wait_s=0.3, step=0))
    assert codes(build.end()) == set()


def test_imbalance():
    found = one(minimal.rank_imbalance(0.5), "rank_imbalance")
    assert found.severity is Severity.WARNING
    assert found.evidence["excess_ratio"] == pytest.approx(0.5, abs=0.04)
    assert "straggler" not in codes(minimal.rank_imbalance())
    assert one(minimal.rank_imbalance(0.2), "rank_imbalance").severity is Severity.INFO
    assert "rank_imbalance" not in codes(minimal.rank_imbalance(0.1))


def test_first_failure():
    found = one(minimal.failed(2, 1, 3), "rank_failed_first")
    assert (found.rank, found.severity) == (2, Severity.CRITICAL)
    assert found.evidence["state"] == "failed"


def test_out_of_memory_is_a_failure():
    assert one(minimal.failed(3, state="oom"), "rank_failed_first").evidence["state"] == "oom"


def test_own_rank_failed_first():
    assert one(minimal.failed(2, 1, 3, own=True), "rank_failed_first").rank == 0


def test_ranks_that_fail_together_are_all_named():
    events = minimal.job(lambda rank, round_: {"state": "failed"} if rank in (1, 3) and round_ >= 9 else {}, rounds=12).end(
        "failed"
    )
    found = one(events, "rank_failed_first")
    assert found.rank is None
    assert "ranks 1, 3" in found.summary


def test_silence_is_no_failure():
    assert "rank_failed_first" not in codes(minimal.failed(2, state="silent"))


def test_equal_ranks_are_silent():
    assert loud(minimal.job(rounds=60).end()) == []
