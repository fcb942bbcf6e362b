"""Every hook of both callbacks, read off the classes: with a monitor that fails and arguments that are nonsense, none raises."""

from __future__ import annotations

import inspect

import pytest

from trainbudget.monitor import Monitor
from trainbudget.monitor.life import CLOSE_S

huggingface = pytest.importorskip("trainbudget.huggingface")
lightning = pytest.importorskip("trainbudget.lightning")

#: Not hooks: construction, copies.
OTHERS = {"__init__", "__reduce__"}


class Hostile:
    """A monitor whose every attribute raises."""

    def __getattribute__(self, name):
        raise RuntimeError(f"injected at {name}")


class Nonsense:
    """An argument of which nothing can be asked."""

    def __getattr__(self, name):
        raise ZeroDivisionError(name)


def hooks_of(kind):
    return [n for n, f in vars(kind).items() if inspect.isfunction(f) and not n.startswith("_") and n not in OTHERS]


CASES = [(kind, name) for kind in (huggingface.TrainBudgetCallback, lightning.TrainBudgetCallback) for name in hooks_of(kind)]


def arguments_for(method, value):
    names = list(inspect.signature(method).parameters.values())
    return [value for p in names if p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty]


@pytest.mark.parametrize(("kind", "name"), CASES, ids=[f"{k.__module__.split('.')[1]}.{n}" for k, n in CASES])
def test_no_hook_raises(kind, name):
    healthy = Monitor(backend="none", listen="off", record=False, log=False, interval=0.02)
    for monitor in (Hostile(), healthy):
        for value in (None, Nonsense(), "text"):
            callback = kind(monitor=healthy)
            callback.monitor = monitor
            method = getattr(callback, name)
            method(*arguments_for(method, value))
    healthy.close()


def test_the_list_holds_what_the_frameworks_call():
    names = {name for _, name in CASES}
    assert {"on_train_begin", "on_step_begin", "on_step_end", "on_log", "on_save", "on_evaluate", "on_train_end"} <= names
    assert {"setup", "on_train_batch_start", "on_train_batch_end", "on_exception", "teardown", "on_validation_end"} <= names


METHODS = {n: f for n, f in inspect.getmembers(Monitor, inspect.isfunction) if not n.startswith("_")}
PUBLIC = [n for n, f in METHODS.items() if hasattr(f, "__wrapped__")]
#: Give control back to the caller in between: their own parts are hooks.
CONTEXTS = {"phase", "step", "batches"}


@pytest.mark.parametrize("name", [n for n in PUBLIC if n not in CONTEXTS])
def test_no_method_of_a_monitor_raises(name, monkeypatch):
    """With a queue and a clock that fail, and nonsense for arguments."""
    monitor = Monitor(backend="none", listen="off", record=False, log=False)

    def fail(*args):
        raise RuntimeError("injected")

    monkeypatch.setattr(monitor._queue, "put", fail)
    monkeypatch.setattr(monitor, "_now_s", fail)
    method = getattr(monitor, name)
    keywords = {p.name: Nonsense() for p in inspect.signature(method).parameters.values() if p.kind is p.KEYWORD_ONLY}
    method(*arguments_for(method, Nonsense()))
    method(*arguments_for(method, Nonsense()), **{k: v for k, v in keywords.items() if k != "numbers"})


def test_what_is_no_hook_of_a_monitor_is_known():
    """Properties and contexts apart, every public method is harmless; `subscribe` only appends."""
    assert METHODS.keys() - set(PUBLIC) == {"subscribe", "batches"}
    assert CLOSE_S < 2.0


def test_contexts_let_the_body_run_whatever_happens(monkeypatch):
    monitor = Monitor(backend="none", listen="off", record=False, log=False)

    def fail(*args):
        raise RuntimeError("injected")

    monkeypatch.setattr(monitor._queue, "put", fail)
    ran = []
    for batch in monitor.batches([1, 2]):
        with monitor.step(tokens=Nonsense()), monitor.phase("eval"):
            ran.append(batch)
    assert ran == [1, 2]
    assert monitor._counters.errors
    monitor.close()
