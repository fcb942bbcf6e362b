"""The monitor's own logic: outcomes, identity told late, errors told once, what a step gathers."""

from __future__ import annotations

import pytest

from trainbudget.clock import ManualClock
from trainbudget.errors import ConfigError
from trainbudget.events import Event, Step
from trainbudget.monitor import Monitor


def a_monitor(**more) -> Monitor:
    return Monitor(**{"backend": "none", "listen": "off", "record": False, "log": False, "interval": 0.02} | more)


def queued(monitor: Monitor) -> list:
    """What the hooks have put, without a feeder."""
    return [monitor._queue.pop() for _ in range(len(monitor._queue))]


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def alone(monkeypatch, clock):
    """A monitor whose threads never start: its queue keeps everything."""
    monkeypatch.setattr(Monitor, "start", lambda self: None)
    return a_monitor(clock=clock)


@pytest.mark.parametrize(
    ("acts", "outcome"),
    [
        ((), "finished"),
        (("begin",), "interrupted"),
        (("begin", "end"), "finished"),
        (("begin", ValueError("x")), "failed"),
        (("begin", KeyboardInterrupt()), "interrupted"),
        (("begin", SystemExit(0)), "interrupted"),
        (("begin", SystemExit(3)), "failed"),
        (("begin", SystemExit(128 + 15)), "interrupted"),  # what a user's handler of SIGTERM exits with
        (("begin", ValueError("x"), "begin", "end"), "finished"),
        (("begin", "stop", "end"), "stopped"),
        (("begin", "stop", ValueError("x")), "failed"),
    ],
)
def test_the_outcome_is_how_training_was_left_last(acts, outcome):
    monitor = a_monitor()
    monitor.start()
    for act in acts:
        if act == "begin":
            monitor.train_begin()
        elif act == "end":
            monitor.train_end()
        elif act == "stop":
            monitor.stop_requested = "over budget"
        else:
            monitor.exception(act)
    monitor.close()
    assert monitor.report.outcome == outcome


def test_what_is_known_late_fills_in_the_header():
    monitor = a_monitor()
    monitor.start()
    monitor.directory  # waits for the start
    monitor.identify(framework="huggingface", settings={"max_steps": 8, "output_dir": "/secret"})
    monitor.close()
    header = monitor.report.header
    assert (header.framework, header.settings) == ("huggingface", {"max_steps": 8})


def test_a_step_gathers_what_was_told_since_the_last_one(alone):
    alone.train_begin(steps_total=10)
    alone.data_wait(0.5)
    alone.batch_seen(tokens=10, useful_tokens=8, samples=2, max_sequence_tokens=5)
    alone.step_begin()
    alone.step_begin()  # an adapter may say it twice
    alone.batch_seen(tokens=20, useful_tokens=15, samples=2, max_sequence_tokens=9)
    alone.micro_step()
    alone.metrics(loss=2.5)
    alone.step_end(step=7)
    alone.step_end()  # no step is open: nothing
    alone.step_begin()
    alone.step_end()
    first, second = [f for f in queued(alone) if isinstance(f, Step)]
    assert (first.step, first.tokens, first.useful_tokens, first.samples) == (7, 30, 23, 4)
    assert (first.max_sequence_tokens, first.loss, first.micro_steps, first.data_wait_s) == (9, 2.5, 2, 0.5)
    assert (second.step, second.tokens, second.loss, second.micro_steps, second.data_wait_s) == (8, None, None, None, None)


def test_a_wait_inside_a_step_is_not_its_work(alone, clock):
    alone.train_begin()
    clock.advance(1.0)
    alone.step_begin()
    clock.advance(0.25)
    alone.data_wait(0.25)
    clock.advance(0.5)
    alone.step_end()
    (step,) = [f for f in queued(alone) if isinstance(f, Step)]
    assert (step.start_s, step.t_s, step.data_wait_s) == (1.25, 1.75, 0.25)


def test_a_first_step_without_a_word_begins_the_training_and_keeps_its_wait(alone):
    alone.data_wait(0.5)
    alone.step_begin()
    alone.step_end()
    facts = queued(alone)
    assert [f.event for f in facts if isinstance(f, Event)] == ["train_begin"]
    assert facts[-1].data_wait_s == 0.5


def test_an_error_is_told_once_however_many_places_see_it(alone):
    alone.train_begin()
    error = RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    alone.out_of_memory(error)
    for _ in range(2):
        alone.exception(error)
    assert [f.event for f in queued(alone) if isinstance(f, Event)] == ["train_begin", "oom", "exception"]


def test_bad_arguments_raise_and_nothing_else_does():
    with pytest.raises(ValueError, match="price"):
        a_monitor(price="cheap")
    with pytest.raises(ConfigError, match="no such setting"):
        a_monitor(prize="2 USD/h")
    assert a_monitor(price="2 USD/h").settings.price.amount == 2.0


def test_a_listener_that_fails_does_not_keep_the_others_from_hearing():
    monitor = a_monitor()
    heard = []

    def fail(report):
        raise RuntimeError("mine")

    monitor.subscribe(fail)
    monitor.subscribe(heard.append)
    with monitor, monitor.step():
        pass
    assert heard[-1].steps.done == 1
    assert monitor._counters.errors["listener"] >= 1
