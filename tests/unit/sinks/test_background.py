"""The thread that talks to the network: order, newest wins, failures, and an end that does not wait for ever."""

from __future__ import annotations

import threading
import time

from trainbudget.sinks.background import Background


def test_jobs_run_in_order() -> None:
    done: list[int] = []
    background = Background("test", most=10)
    for number in range(10):
        background.submit(lambda n=number: done.append(n))  # type: ignore[misc]
    background.close()
    assert done == list(range(10))


def test_with_room_for_one_the_newest_wins() -> None:
    gate, started, done = threading.Event(), threading.Event(), []
    background = Background("test")

    def first() -> None:
        started.set()
        gate.wait(10)
        done.append("first")

    background.submit(first)
    started.wait(10)
    for name in ("old", "older", "newest"):
        background.submit(lambda n=name: done.append(n))  # type: ignore[misc]
    gate.set()
    background.close()
    assert done == ["first", "newest"]
    assert background.dropped == 0  # superseded, not lost


def test_what_does_not_fit_is_counted() -> None:
    gate, started = threading.Event(), threading.Event()
    background = Background("test", most=2)
    background.submit(lambda: (started.set(), gate.wait(10)))  # type: ignore[arg-type, return-value]
    started.wait(10)
    for _ in range(5):
        background.submit(lambda: None)
    gate.set()
    background.close()
    assert background.dropped == 3


def test_a_job_that_fails_is_counted_and_the_next_one_runs() -> None:
    done: list[str] = []
    background = Background("test", most=5)
    background.submit(lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    background.submit(lambda: done.append("after"))
    background.close()
    assert (background.errors, done) == (1, ["after"])


def test_the_end_waits_for_a_stuck_job_no_longer_than_it_may() -> None:
    stuck = threading.Event()
    background = Background("test")
    background.submit(lambda: stuck.wait(30))  # type: ignore[arg-type, return-value]
    started = time.monotonic()
    background.close(timeout_s=0.1)
    assert time.monotonic() - started < 5.0
    stuck.set()


def test_nothing_to_do_needs_no_thread() -> None:
    before = threading.active_count()
    background = Background("test")
    background.close()
    background.submit(lambda: None)
    assert threading.active_count() == before
    assert background.dropped == 1
