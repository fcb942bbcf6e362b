"""The plain loop: batches, steps, micro-batches and phases."""

from __future__ import annotations

import functools
import time

import pytest

from integration.adapters.small import count_of, facts_of, moments, phases, seconds, steps, total, watched
from trainbudget.live import start
from trainbudget.live.pipeline import replay
from trainbudget.trace import read_trace


def slow(count, seconds_each, took=None):
    """Batches of a known price; `took` gets what each really took."""
    for number in range(count):
        began = time.monotonic()
        time.sleep(seconds_each)
        if took is not None:
            took.append(time.monotonic() - began)
        yield number


def test_waits_steps_and_phases_are_told_apart(tmp_path):
    took, worked = [], []
    with watched(tmp_path) as monitor:
        for _ in monitor.batches(slow(6, 0.12, took)):
            with monitor.step(tokens=10, useful_tokens=8, samples=2, max_sequence_tokens=5):
                list(slow(1, 0.05, worked))
        with monitor.phase("eval"):
            time.sleep(0.1)
    facts = facts_of(monitor)
    assert total(facts, "data_wait_s") == pytest.approx(sum(took), rel=0.05)
    assert sum(s.t_s - s.start_s for s in steps(facts)) == pytest.approx(sum(worked), rel=0.05)
    assert (total(facts, "tokens"), total(facts, "useful_tokens"), total(facts, "samples")) == (60, 48, 12)
    assert 0.1 <= seconds(facts, "eval") < 0.3
    assert [m.event for m in moments(facts)] == ["train_begin", "train_end"]
    assert monitor.report.outcome == "finished"


def test_a_micro_batch_is_folded_into_its_step(tmp_path):
    took, worked = [], []
    with watched(tmp_path) as monitor:
        for number in monitor.batches(slow(6, 0.05, took)):
            with monitor.step(sync=number % 3 == 2, tokens=10):
                list(slow(1, 0.02, worked))
    facts = facts_of(monitor)
    assert count_of(facts) == 2
    assert [(s.micro_steps, s.tokens) for s in steps(facts)] == [(3, 30), (3, 30)]
    assert [s.data_wait_s for s in steps(facts)] == pytest.approx([sum(took[:3]), sum(took[3:])], rel=0.05)
    # Waits between micro-batches are outside the step's own time.
    assert [s.t_s - s.start_s for s in steps(facts)] == pytest.approx([sum(worked[:3]), sum(worked[3:])], rel=0.1)


def test_errors_of_the_loop_pass_through(tmp_path):
    monitor = watched(tmp_path)
    with pytest.raises(ZeroDivisionError), monitor:  # noqa: PT012 - the block is what is tested
        with monitor.step():
            pass
        with monitor.step():
            1 / 0
    facts = facts_of(monitor)
    assert count_of(facts) == 1
    assert monitor.report.outcome == "failed"
    assert moments(facts, "exception")[0].detail == {"type": "ZeroDivisionError", "message": "division by zero"}


def test_a_loader_that_fails_or_lies_about_itself(tmp_path):
    class Odd:
        @property
        def num_workers(self):
            raise RuntimeError("mine alone")

        def __iter__(self):
            yield 1
            raise LookupError("also mine")

    monitor = watched(tmp_path)
    monitor.start()
    got = []
    batches = monitor.batches(Odd())
    with pytest.raises(LookupError, match="also mine"):
        got.extend(batches)
    assert got == [1]
    monitor.close()


def test_an_out_of_memory_error_that_the_loop_survives(tmp_path):
    with watched(tmp_path) as monitor:
        with monitor.step():
            pass
        try:
            with monitor.step():
                raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        except RuntimeError as err:
            monitor.out_of_memory(err)
        with monitor.step():
            pass
    facts = facts_of(monitor)
    assert count_of(facts) == 2
    assert [m.detail["requested_bytes"] for m in moments(facts, "oom")] == [2 * 2**30]
    assert not phases(facts, "eval")


def test_fast_steps_are_merged_and_their_record_replays_equal(tmp_path):
    with watched(tmp_path, budget={"step_time_s": 0.001, "memory_peak": "1 GiB"}) as monitor:
        for _ in range(300):
            with monitor.step(tokens=4, useful_tokens=3):
                time.sleep(0.004)
    live = monitor.report
    facts = list(read_trace(monitor.directory))
    assert count_of(facts) == 300
    assert len(steps(facts)) < 60  # at most about ten lines a second, contention included
    again = replay(facts)
    assert again.ledger == live.ledger
    assert again.findings == live.findings
    assert again.steps == live.steps
    assert live.findings


def test_a_record_of_many_parts_replays_equal(tmp_path, monkeypatch):
    monkeypatch.setattr(start, "TraceWriter", functools.partial(start.TraceWriter, part_bytes=4000))
    with watched(tmp_path, budget={"step_time_s": 0.001}) as monitor:
        for _ in range(40):
            with monitor.step(tokens=4):
                time.sleep(0.05)
    assert len(list(monitor.directory.glob("trace.*.jsonl.gz"))) >= 2
    again = replay(read_trace(monitor.directory))
    assert again.ledger == monitor.report.ledger
    assert again.findings == monitor.report.findings
    assert again.steps == monitor.report.steps
