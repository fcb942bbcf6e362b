"""Adding the callback to a script that does not know it: after its framework is imported, before its Trainer is built."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from trainbudget.live.assembly import planned
from trainbudget.monitor import Monitor


def attach_to_frameworks(monitor: Any) -> None:
    """From now on every Hugging Face and Lightning Trainer built in this process has the callback, once."""
    finder = _AfterImport(
        {
            "transformers.trainer": lambda module: _add_to_huggingface(module, monitor),
            "lightning.pytorch.trainer.trainer": lambda module: _add_to_lightning(module, monitor),
            "pytorch_lightning.trainer.trainer": lambda module: _add_to_lightning(module, monitor),
        }
    )
    sys.meta_path.insert(0, finder)


def give_way_to_own_monitors(monitor: Monitor, script: str) -> None:
    """A monitor that the script starts by itself takes over: two of them would bill the same seconds twice."""
    original = Monitor.start

    @functools.wraps(original)
    def start(self: Monitor) -> None:
        if self is monitor or self.started or self.inert or monitor.inert:
            original(self)
            return
        print(f"trainbudget: {script} has its own monitor, which takes over", file=sys.stderr)
        asked = monitor.settings.budget
        monitor.give_way()
        original(self)
        own = self.settings.budget
        if asked is not None and asked.run_time_s is not None and (own is None or own.run_time_s is None):
            self.expect(run_time_s=planned(asked.run_time_s, "given"))

    Monitor.start = start  # type: ignore[assignment, method-assign]


def _add_to_huggingface(module: ModuleType, monitor: Any) -> None:
    """The Trainer adds every entry of `transformers.trainer.DEFAULT_CALLBACKS` by itself."""
    from trainbudget.huggingface import TrainBudgetCallback

    module.DEFAULT_CALLBACKS.append(TrainBudgetCallback(monitor=monitor))


def _add_to_lightning(module: ModuleType, monitor: Any) -> None:
    trainer = module.Trainer
    original = trainer.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        from trainbudget.lightning import TrainBudgetCallback

        given = kwargs.get("callbacks")
        callbacks = list(given) if isinstance(given, (list, tuple)) else [] if given is None else [given]
        if not any(isinstance(c, TrainBudgetCallback) for c in callbacks):
            kwargs["callbacks"] = [*callbacks, TrainBudgetCallback(monitor=monitor)]
        original(self, *args, **kwargs)

    trainer.__init__ = init


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function with a module right after it has been imported for the first time."""

    def __init__(self, actions: dict[str, Callable[[ModuleType], None]]) -> None:
        self._actions = actions

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        action = self._actions.pop(name, None)
        if action is None:
            return None
        spec = importlib.util.find_spec(name) if path is None else importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            action(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
