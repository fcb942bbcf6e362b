"""The bounded queue and the merging of steps: nothing is lost that counts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainbudget.events import Event, Step
from trainbudget.live.merge import merge_steps, mergeable, step_seconds
from trainbudget.live.queue import FactQueue


def a_step(number, **more):
    return Step(t_s=float(number), step=number, start_s=number - 0.6, **more)


def drained(queue):
    return [queue.pop() for _ in range(len(queue))]


def test_facts_come_out_in_order():
    queue = FactQueue()
    for number in range(3):
        queue.put(a_step(number))
    assert queue.peek().step == 0
    assert [s.step for s in drained(queue)] == [0, 1, 2]
    assert queue.peek() is None


def test_beyond_its_capacity_steps_are_merged_and_counted():
    queue = FactQueue(capacity=2)
    for number in range(1, 11):
        queue.put(a_step(number, tokens=10.0))
    facts = drained(queue)
    assert len(facts) == 2
    assert sum(s.count or 1 for s in facts) == 10
    assert sum(s.tokens for s in facts) == 100.0
    assert (queue.merged, queue.dropped) == (8, 0)


def test_what_cannot_be_merged_is_dropped_and_counted():
    queue = FactQueue(capacity=1)
    queue.put(Event(event="train_begin"))
    queue.put(a_step(1))
    assert [f.event for f in drained(queue)] == ["train_begin"]
    assert queue.dropped == 1


@given(st.lists(st.tuples(st.floats(0.01, 0.5), st.floats(0, 0.09), st.integers(0, 100)), min_size=2, max_size=12))
@settings(max_examples=50, deadline=None)
def test_merging_keeps_sums_ends_and_seconds(rows):
    steps, now = [], 0.0
    for number, (work, wait, tokens) in enumerate(rows, start=1):
        start = now + wait
        now = start + work
        steps.append(Step(t_s=now, step=number, start_s=start, data_wait_s=wait, tokens=float(tokens), loss=float(tokens)))
    merged = steps[0]
    for step in steps[1:]:
        merged = merge_steps(merged, step)
    assert merged.count == len(rows)
    assert (merged.step, merged.t_s, merged.start_s) == (len(rows), now, steps[0].start_s)
    assert merged.tokens == sum(t for _, _, t in rows)
    assert merged.loss == pytest.approx(sum(t for _, _, t in rows) / len(rows))  # the mean
    assert step_seconds(merged) == pytest.approx(sum(w for w, _, _ in rows))
    assert merged.data_wait_s == pytest.approx(sum(w for _, w, _ in rows))


def test_a_nan_loss_stays_visible_and_an_unknown_part_makes_the_sum_unknown():
    merged = merge_steps(a_step(1, loss=math.nan, tokens=5.0), a_step(2, loss=1.0))
    assert math.isnan(merged.loss)
    assert merged.tokens is None
    assert merge_steps(a_step(1, loss=2.0), a_step(2)).loss == 2.0


def test_repeated_skipped_and_waited_for_steps_keep_their_line():
    assert not mergeable(a_step(1), a_step(2, data_wait_s=0.3))
    assert mergeable(a_step(1), a_step(2))
    assert not mergeable(a_step(2), a_step(1))
    assert not mergeable(a_step(1, skipped=True), a_step(2))
    assert not mergeable(a_step(1), a_step(2, skipped=True))
