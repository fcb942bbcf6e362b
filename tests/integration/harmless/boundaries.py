"""Every place where a monitored run meets something that can fail, read off the code: a new one is tested by being there.

A boundary is `module:Class.method` or `module:function`. It is reached by the run in `run.py`, or it stands in `ELSEWHERE`
with the reason why it is not.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from dataclasses import dataclass
from typing import Any

import trainbudget.live.probes
import trainbudget.sinks
from trainbudget.gpu import protocol
from trainbudget.live import start

#: Boundaries that the small run does not pass, and why that is no hole.
ELSEWHERE = {
    "trainbudget.live.probes.host:process_lookup": "given to the NVML backend; its reads are a boundary of their own",
    "trainbudget.live.probes.host:memory_limit_bytes": "called by host_of, which is a boundary",
    "trainbudget.live.probes.host:available_bytes": "called by HostProbe.read, which is a boundary",
    "trainbudget.live.probes.step_clock:StepMarks.idle_before_s": "follows busy_s in the same guard",
    "trainbudget.gpu.mock:MockBackend.events": "the mock tells no moments; see unit/live/test_sampler.py",
    "trainbudget.live.start:leave_no_trace": "for monitors that give way to another one, see e2e/test_cli.py",
    "trainbudget.live.start:ranks_of": "used by require_free_port only; own_ranks is a boundary",
    "trainbudget.live.start:parse_listen": "used by require_free_port only",
    "trainbudget.live.start:require_free_port": "raises on purpose, at construction and with strict_port only",
    "trainbudget.live.start:start_feeder": "the function whose collaborators these are",
    "trainbudget.sinks.record:TraceWriter.abandon": "runs in forked children; see test_fork.py",
}
#: Called on the training thread, where nothing can be waited out: they ask no driver, disk or network, only torch's
#: allocator statistics and two event records a step.
TRAINING_THREAD = (
    "trainbudget.live.probes.garbage:",
    "trainbudget.live.probes.process_group:",
    "trainbudget.live.probes.step_clock:CudaStepClock",
    "trainbudget.live.probes.torch_memory:",
    "trainbudget.live.start:backend_factory",
    "trainbudget.live.start:own_ranks",
    "trainbudget.live.start:run_id",
    "trainbudget.live.start:run_name",
    "trainbudget.live.start:Enforcer",
    "trainbudget.live.start:Feeder",
    "trainbudget.live.start:LearnedBudget",
    "trainbudget.live.start:Sampler",
    "threading:Thread.start",
)


@dataclass(frozen=True)
class Boundary:
    """`target` as above; `hangs` = it is called where a hang can be waited out."""

    target: str

    @property
    def hangs(self) -> bool:
        return not self.target.startswith(TRAINING_THREAD)

    def __str__(self) -> str:
        return self.target.removeprefix("trainbudget.")


def boundaries() -> list[Boundary]:
    """All of them, in a fixed order."""
    targets = [*_collaborators(), *_sinks(), *_probes(), *_backend(), *_OTHERS]
    return [Boundary(target) for target in dict.fromkeys(targets) if target not in ELSEWHERE]


_OTHERS = (
    "trainbudget.engine.engine:Engine.feed",
    "trainbudget.engine.engine:Engine.report",
    "trainbudget.live.pipeline:Pipeline.publish",
    "trainbudget.live.learned:LearnedBudget.look",
    "trainbudget.live.enforce:Enforcer.look",
    "trainbudget.live.sampler:Sampler._map",
    "trainbudget.sinks.record:TraceWriter.write",
    "trainbudget.sinks.record:TraceWriter.flush",
    "trainbudget.sinks.record:TraceWriter.close",
    "trainbudget.sinks.http_server:ReadOnlyServer.close",
    "trainbudget.live.console:ConsoleHandler.emit",
    "threading:Thread.start",
)


def _collaborators() -> list[str]:
    """Whatever `live/start.py` calls of ours: functions and classes in its namespace."""
    found = []
    for name, value in vars(start).items():
        ours = getattr(value, "__module__", "").startswith("trainbudget.")
        if name.startswith("_") or not ours or not (inspect.isfunction(value) or inspect.isclass(value)):
            continue
        if inspect.isclass(value) and (issubclass(value, BaseException) or _is_data(value)):
            continue
        found.append(f"{start.__name__}:{name}")
    return [*found, "trainbudget.sinks.prometheus:PrometheusSink"]  # imported late


def _sinks() -> list[str]:
    """Every class of `sinks/` that has the methods of a sink."""
    found = []
    for module in _modules(trainbudget.sinks):
        for name, value in _own(module, inspect.isclass):
            writes = hasattr(value, "write") and hasattr(value, "close") and not getattr(value, "_is_protocol", False)
            if writes and "report" in inspect.signature(value.write).parameters and name != "FanOut":
                found += [f"{module.__name__}:{name}.write", f"{module.__name__}:{name}.close"]
    return found


def _probes() -> list[str]:
    """Every public function, class and method of `live/probes/`."""
    found = []
    for module in _modules(trainbudget.live.probes):
        found += [f"{module.__name__}:{name}" for name, _ in _own(module, inspect.isfunction)]
        for name, value in _own(module, inspect.isclass):
            for method, part in vars(value).items():
                if not method.startswith("_") and (inspect.isfunction(part) or isinstance(part, property)):
                    found.append(f"{module.__name__}:{name}.{method}")
    return found


def _backend() -> list[str]:
    """Every method of every protocol of `gpu/protocol.py`, on the backend that has them all."""
    names = []
    for _, value in _own(protocol, inspect.isclass):
        if getattr(value, "_is_protocol", False):
            names += [
                n for n, part in vars(value).items() if not n.startswith("_") and (callable(part) or isinstance(part, property))
            ]
    return [f"trainbudget.gpu.mock:MockBackend.{name}" for name in dict.fromkeys(names)]


def _modules(package: Any) -> list[Any]:
    return [importlib.import_module(f"{package.__name__}.{m.name}") for m in pkgutil.iter_modules(package.__path__)]


def _own(module: Any, kind: Any) -> list[tuple[str, Any]]:
    """Public things of a kind that are defined in the module itself."""
    return [(n, v) for n, v in vars(module).items() if not n.startswith("_") and kind(v) and v.__module__ == module.__name__]


def _is_data(value: type) -> bool:
    """A fact, a report, a protocol: nothing happens in it."""
    return hasattr(value, "__struct_fields__") or getattr(value, "_is_protocol", False) or value.__name__ == "Parts"
