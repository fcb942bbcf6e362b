"""Small parts of the live half: the collector's pauses, a plan on disk, the learned budget, the enforcer, the console."""

from __future__ import annotations

import gc
import io
import logging
import sys
import threading
import types

import pytest

from trainbudget.budget import Budget
from trainbudget.config import Settings
from trainbudget.engine.engine import Engine
from trainbudget.errors import ConfigError
from trainbudget.events import BudgetFact, End, Event, Header, Price, Step, Tick
from trainbudget.live.console import ConsoleHandler, add_handler, let_go_of_stuck_handlers
from trainbudget.live.counters import MOST_NOTES, Counters
from trainbudget.live.enforce import Enforcer
from trainbudget.live.learned import LEARN_STEPS, LearnedBudget
from trainbudget.live.plan_facts import plan_facts
from trainbudget.live.probes import garbage
from trainbudget.live.probes.garbage import GarbageProbe
from trainbudget.live.wrapping import put_around
from trainbudget.monitor import Monitor

# --- garbage


def test_only_pauses_that_a_step_can_feel_are_told(monkeypatch):
    told = []
    probe = GarbageProbe(lambda generation, lasted_s: told.append((generation, lasted_s)))
    probe.start()
    probe.start()
    try:
        assert gc.callbacks.count(probe._on_gc) == 1
        monkeypatch.setattr(garbage, "WORTH_TELLING_S", 1e9)
        gc.collect()
        assert told == []
        monkeypatch.setattr(garbage, "WORTH_TELLING_S", 0.0)
        gc.collect()
        assert told[-1][0] == 2
        assert told[-1][1] > 0.0
    finally:
        probe.stop()
    probe.stop()
    before = len(told)
    gc.collect()
    assert len(told) == before


def test_a_teller_that_fails_is_nobodys_problem(monkeypatch, capsys):
    monkeypatch.setattr(garbage, "WORTH_TELLING_S", 0.0)

    def fail(generation, lasted_s):
        raise RuntimeError("mine")

    probe = GarbageProbe(fail)
    probe.start()
    gc.collect()
    probe.stop()
    assert capsys.readouterr().err == ""


def test_a_monitor_listens_to_the_collector_during_training_only(monkeypatch):
    monkeypatch.setattr(garbage, "WORTH_TELLING_S", 0.0)
    monitor = Monitor(backend="none", listen="off", record=False, log=False)
    ours = monitor._garbage._on_gc
    assert ours not in gc.callbacks
    monitor.train_begin()
    assert ours in gc.callbacks
    gc.collect()
    monitor.train_end()
    assert ours not in gc.callbacks
    monitor.train_begin()
    monitor.exception(ValueError("mine"))
    assert ours not in gc.callbacks
    monitor.train_begin()
    monitor.close()
    assert ours not in gc.callbacks
    assert monitor._feeder._parts.pipeline.engine.timeline.pauses is not None


# --- plans


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '"text"', "\x00\x01"])
def test_what_is_no_plan_is_refused_in_one_line(tmp_path, content):
    path = tmp_path / "plan.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match="plan") as caught:
        plan_facts(path)
    assert "\n" not in str(caught.value)


# --- learned budgets


def steady(count, step_s=1.0):
    engine = Engine()
    engine.feed(Header(run="r"))
    engine.feed(Event(t_s=0.0, event="train_begin"))
    for number in range(1, count + 1):
        engine.feed(Step(t_s=number * step_s, step=number, start_s=(number - 1) * step_s))
    return engine


def test_a_budget_is_learned_once_from_enough_steady_steps():
    learned = LearnedBudget()
    assert learned.look(steady(10).timeline) is None
    fact = learned.look(steady(LEARN_STEPS * 3).timeline)
    assert fact.source == "learned"
    assert fact.step_time_s.value == pytest.approx(1.0)
    assert fact.step_time_s.low <= 0.9
    assert fact.step_time_s.high >= 1.1
    assert learned.look(steady(LEARN_STEPS * 3).timeline) is None


def test_a_given_budget_is_not_learned_over():
    engine = steady(LEARN_STEPS * 3)
    engine.timeline.merge_budget(BudgetFact(step_time_s=0.5, source="given"))
    fact = LearnedBudget().look(engine.timeline)
    assert fact is None or fact.step_time_s is None


# --- enforcing


def report_of(*, cost_budget=None, run_time_s=None, wall_s=100.0, ended=False):
    engine = Engine()
    engine.feed(
        Header(
            run="r", price=Price(per_gpu_hour=36.0, currency="USD"), budget=BudgetFact(cost=cost_budget, run_time_s=run_time_s)
        )
    )
    engine.feed(Event(t_s=0.0, event="train_begin"))
    for number in range(1, int(wall_s) + 1):
        engine.feed(Step(t_s=float(number), step=number, start_s=number - 1.0))
    engine.feed(End(t_s=wall_s, outcome="finished") if ended else Tick(t_s=wall_s))
    return engine.report()


@pytest.mark.parametrize(
    ("on_exceed", "budget", "stops"),
    [
        ("stop", {"cost_budget": 0.5}, "0.90 of|spent|USD"),
        ("stop", {"run_time_s": 50.0}, "used"),
        ("stop", {"cost_budget": 50.0, "run_time_s": 500.0}, None),
        ("stop", {}, None),
        ("warn", {"cost_budget": 0.5}, None),
        ("dry_run", {"cost_budget": 0.5}, None),
        ("stop", {"cost_budget": 0.5, "ended": True}, None),
    ],
)
def test_a_run_is_stopped_only_where_somebody_asked_for_it(on_exceed, budget, stops):
    enforcer = Enforcer(Settings(on_exceed=on_exceed, budget=Budget(cost=1)), 1)
    reason = enforcer.look(report_of(**budget))
    if stops is None:
        assert reason is None
    else:
        assert any(word in reason for word in stops.split("|"))
        assert enforcer.look(report_of(**budget)) is None  # said once


def test_what_may_stop_can_be_chosen_and_a_lone_rank_never_stops():
    exceeded = report_of(cost_budget=0.5)
    assert Enforcer(Settings(on_exceed="stop", stop_on=("run_time",)), 1).look(exceeded) is None
    assert Enforcer(Settings(on_exceed="stop"), 2).look(exceeded) is None


# --- console


@pytest.fixture
def logger():
    made = logging.Logger("alone")
    made.parent = None
    return made


def test_lines_carry_their_level_and_our_name(logger, monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    add_handler(logger)
    add_handler(logger)
    logger.info("hello")
    logger.warning("careful")
    assert stream.getvalue() == "trainbudget: hello\nWARNING trainbudget: careful\n"


def test_an_application_with_handlers_of_its_own_keeps_them_alone(logger, monkeypatch):
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.NullHandler()])
    add_handler(logger)
    assert logger.handlers == []


@pytest.mark.parametrize("stream", [None, types.SimpleNamespace(write=lambda t: (_ for _ in ()).throw(OSError("gone")))])
def test_a_terminal_that_is_gone_is_no_error(stream, monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream)
    ConsoleHandler().emit(logging.makeLogRecord({"msg": "x", "levelno": logging.INFO}))


def test_only_handlers_that_somebody_holds_are_let_go(logger):
    held, free = logging.NullHandler(), logging.NullHandler()
    for handler in (held, free):
        handler.createLock()  # a NullHandler has none of its own
        handler.lock = threading.RLock()
        logger.addHandler(handler)
    entered, release = threading.Event(), threading.Event()

    def hold():
        with held.lock:
            entered.set()
            release.wait(10.0)

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    entered.wait(5.0)
    locks = held.lock, free.lock
    let_go_of_stuck_handlers(logger)
    release.set()
    assert held.lock is not locks[0]
    assert free.lock is locks[1]
    flushed = [reference() for reference in logging._handlerList]
    assert held not in flushed
    assert free in flushed


# --- counters and wrappers


def test_faults_are_counted_and_said_once():
    counters = Counters()
    for _ in range(3):
        counters.fault("disk", OSError("full"))
    assert counters.errors == {"disk": 3}
    assert [text for _, text in counters.notes] == ["monitoring fault in disk (OSError: full); training is not affected"]
    for number in range(MOST_NOTES * 2):
        counters.note(logging.INFO, str(number))
    assert len(counters.notes) == MOST_NOTES


class Owner:
    def work(self, a, *, b=1):
        """Works."""
        return self, a + b


def test_a_method_is_stood_around_and_given_back():
    owner, seen = Owner(), []

    def around(method, *args, **kwargs):
        seen.append((args, kwargs))
        return method(*args, **kwargs)

    wrapper = put_around(owner, {"work": around, "nothing": around}, key=seen)
    assert put_around(owner, {"work": around}, key=seen) is None
    assert owner.work(1, b=2) == (owner, 3)
    assert seen == [((1,), {"b": 2})]
    assert isinstance(owner, Owner)
    assert type(owner).__name__ == "Owner"
    assert Owner().work(1)[1] == 2
    assert seen == [((1,), {"b": 2})]
    wrapper.take_off()
    assert type(owner) is Owner


def test_two_may_stand_around_one():
    owner, order = Owner(), []

    def around(name):
        def act(method, *args):
            order.append(name)
            return method(*args)

        return act

    put_around(owner, {"work": around("inner")}, key="a")
    put_around(owner, {"work": around("outer")}, key="b")
    owner.work(1)
    assert order == ["outer", "inner"]
