"""A small monitored run that passes every boundary, with a fault at one of them."""

from __future__ import annotations

import gc
import importlib
import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import trainbudget.live.probes.garbage as garbage
from trainbudget.live import start
from trainbudget.monitor import Monitor, life, steps
from unit.live.fake_cuda import FakeCuda, fake_torch

STEPS = 5


class Fault:
    """Raises, hangs until `release`, or answers nonsense; counts its calls."""

    def __init__(self, mode: str) -> None:
        self.mode, self.calls = mode, 0
        self.release = threading.Event()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self.mode == "raise":
            raise RuntimeError("injected")
        if self.mode == "hang":
            self.release.wait(120.0)
            raise RuntimeError("released")
        return object()


@contextmanager
def fault_at(target: str, mode: str) -> Iterator[Fault]:
    """The fault, for as long as the block lasts."""
    module_name, _, path = target.partition(":")
    owner: Any = importlib.import_module(module_name)
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    fault = Fault(mode)

    def method(*args: Any, **kwargs: Any) -> Any:
        return fault(*args, **kwargs)

    before = vars(owner).get(name)
    replacement: Any = property(method) if isinstance(before, property) else method
    with ExitStack() as stack:
        stack.callback(fault.release.set)
        if isinstance(owner, type) and module_name.startswith("trainbudget.sinks.") and hasattr(owner, "write"):
            stack.enter_context(_among_the_sinks(owner))
        for place in _places_of(owner, name, before):
            stack.enter_context(mock.patch.object(place, name, replacement))
        yield fault


def _among_the_sinks(sink: type) -> Any:
    """Sinks that need an address, a file or a setting take part too, without any: what they would do is the fault."""
    real = start.FanOut

    def fan_out(sinks: Any) -> Any:
        return real([*sinks, sink.__new__(sink)])

    return mock.patch.object(start, "FanOut", fan_out)


def _places_of(owner: Any, name: str, before: Any) -> list[Any]:
    """The owner, and for a function every module that has imported it by name."""
    places = [owner]
    if isinstance(owner, type(sys)):
        places += [
            module
            for module_name, module in list(sys.modules.items())
            if module_name.startswith("trainbudget.") and module is not owner and vars(module).get(name) is before
        ]
    return places


@contextmanager
def quick() -> Iterator[FakeCuda]:
    """A fake CUDA, short patience, every collection of garbage a long one."""
    cuda = FakeCuda()
    with (
        pytest.MonkeyPatch.context() as patch,
        mock.patch.object(life, "CLOSE_S", 0.25),
        mock.patch.object(steps, "ALLOCATOR_S", 0.0),
        mock.patch.object(garbage, "WORTH_TELLING_S", 0.0),
        # Our own console handler, as in a script that has set up no logging.
        mock.patch.object(logging.getLogger(), "handlers", []),
        mock.patch.object(logging.getLogger("trainbudget"), "handlers", []),
    ):
        # One entry: `mock.patch.dict` empties the whole table for a moment, and a monitor's thread that imports in that moment
        # loads `importlib` a second time, for good.
        patch.setitem(sys.modules, "torch", fake_torch(cuda))
        yield cuda


def train(folder: Path, **settings: Any) -> tuple[int, float, Monitor]:
    """Steps done, seconds that closing took, and the monitor. Whatever the monitor raises comes out."""
    plan = folder / "plan.json"
    plan.write_text('{"memory": {"device_bytes": {"value": 1e9}}}', encoding="utf-8")
    monitor = Monitor(
        **{
            "backend": "mock:healthy",
            "interval": 0.02,
            "sample_period": 0.05,
            "directory": str(folder / "runs"),
            "run_name": "small",
            "listen": "127.0.0.1:0",
            "plan": str(plan),
            "price": "2 USD/h",
            **settings,
        }
    )
    done = 0
    for batch in monitor.batches([1] * STEPS):
        with monitor.step(tokens=batch, samples=1):
            done += 1
            time.sleep(0.005)
    with monitor.phase("eval"):
        gc.collect()
    monitor.out_of_memory(RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB."))
    time.sleep(0.1)  # a few rounds of both threads
    monitor.train_end()
    began = time.monotonic()
    monitor.close()
    return done, time.monotonic() - began, monitor
