"""`plan="auto"`: the planner in a low-priority child process, started when training begins; training never waits for it.

The script is planned again as `trainbudget plan SCRIPT` does it, with its own data, loss and optimizer. Where it cannot be run
again (a notebook, a script that would delete what the run has written), the run is planned by its description, if the framework
gives one.
"""

from __future__ import annotations

import _thread
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from trainbudget.errors import ConfigError
from trainbudget.events import AnyEvent
from trainbudget.live.own_script import own_script
from trainbudget.live.plan_facts import facts_of_plan
from trainbudget.live.probes.host import available_bytes, memory_limit_bytes
from trainbudget.plan.script.background import put_back
from trainbudget.plan.script.protocol import Running
from trainbudget.wording.numbers import size

_log = logging.getLogger("trainbudget")

#: The largest models are traced in under a minute (bench/prediction); a machine that is busy training gets ten times that.
PATIENCE_S = 600.0
#: The child gives way when less than this share of the host's memory is left: training may need it.
LEAST_MEMORY_RATIO = 0.05
LOOK_S = 1.0
#: A new thread keeps the interpreter from the one that made it until it first waits: ours waits at once.
SETTLE_S = 0.05


class AutoPlan:
    """Plans the run once. `tell(fact)` is called on our own thread with what comes out."""

    def __init__(self, tell: Callable[[AnyEvent], None]) -> None:
        self._tell = tell
        self._over = threading.Event()
        self._busy = threading.Event()
        self._request: Callable[[], Mapping[str, Any]] | None = None
        self.started = False
        self.child: subprocess.Popen[bytes] | None = None

    def start(self, request: Callable[[], Mapping[str, Any]]) -> None:
        """Begin, once.

        Args:
            request: called on our thread. `tables` of a plan file, of which `gpu` is the card; and where known
                `trainable_parameters`, and for a description `config` (the model's configuration) and `sequence_length`, which
                may wait for the first batch and returns its tokens an example, or None.
        """
        if self.started:
            return
        self.started = True
        self._request = request
        self._busy.set()
        # `threading.Thread.start` would wait until the system has given the new thread a core; this one does not.
        _thread.start_new_thread(self._run, ())

    def decline(self) -> None:
        """There is nothing to plan: a later `start` does nothing."""
        self.started = True

    def stop(self) -> None:
        """End the child; the run is over or goes away."""
        self._over.set()
        self._request = None
        child = self.child
        if child is not None and child.returncode is None:
            _kill(child)  # our thread waits for it; this one is the training's

    @property
    def busy(self) -> bool:
        """Whether a plan is on its way."""
        return self._busy.is_set()

    # --- on our thread

    def _run(self) -> None:
        try:
            if self._over.wait(SETTLE_S):
                return
            request, self._request = self._request, None  # it holds the model
            asked = request() if request is not None else {}
            del request
            plan = self._plan(asked)
            if not self._over.is_set():
                for fact in facts_of_plan(plan):
                    self._tell(fact)
                _log.info("%s", sentence(plan))
        except Exception as err:  # noqa: BLE001 - without a plan the run goes on with a learned budget
            if not self._over.is_set():
                _tell_none(err)
        finally:
            self._busy.clear()

    def _plan(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        tables = {name: values for name, values in asked["tables"].items() if name != "gpu"}
        running = Running(gpu=dict(asked["tables"]["gpu"]), trainable_parameters=asked.get("trainable_parameters"))
        try:
            own = own_script()
            return self._ask(
                msgspec.structs.replace(running, script=own.script, module=own.module, arguments=list(own.arguments))
            )
        except ValueError as err:
            if not asked.get("config") or self._over.is_set():
                raise
            reason = err
        length = asked["sequence_length"]()
        if not length:
            raise ValueError(f"{reason}; and no batch with tokens has come")
        tables["train"] = {**tables.get("train", {}), "sequence_length": int(length)}
        plain = {name: {k: v for k, v in values.items() if v is not None} for name, values in tables.items()}
        return self._ask(msgspec.structs.replace(running, tables=plain, model_config=_plain(asked["config"])))

    def _ask(self, running: Running) -> dict[str, Any]:
        """Have it planned.

        Raises:
            ConfigError: in one line why there is no plan.
        """
        with tempfile.TemporaryDirectory(prefix="trainbudget-plan-") as folder:
            path = Path(folder, "running.json")
            path.write_bytes(msgspec.json.encode(running))
            with Path(folder, "plan.json").open("w+b") as answer:
                said = self._wait_for(path, answer)
                answer.seek(0)
                text = answer.read()
        if not text.strip():
            raise ConfigError(said or "its process ended without an answer")
        plan: dict[str, Any] = json.loads(text)
        if "error" in plan:
            raise ConfigError(plan["error"])
        return plan

    def _wait_for(self, path: Path, answer: Any) -> str | None:
        """Run the child to its end; why it was ended early, or None."""
        if self._over.is_set():
            return "the run is over"
        command = [sys.executable, "-m", "trainbudget.plan.script.beside", str(path), str(os.getpid())]
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "TRAINBUDGET_DISABLED": "1"}
        environment["TMPDIR"] = str(path.parent)  # what it leaves behind when it is ended goes with the folder
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=answer,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # whatever the script starts ends with it
        )
        self.child = child
        put_back(child.pid)
        until, least = time.monotonic() + PATIENCE_S, LEAST_MEMORY_RATIO * memory_limit_bytes()
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(LOOK_S)
                return None
            reason = (
                "the run is over" if self._over.is_set()
                else "the host's memory runs short" if available_bytes() < least
                else f"it took more than {PATIENCE_S:.0f} s" if time.monotonic() > until
                else None
            )  # fmt: skip
            if reason is not None:
                _kill(child)
                child.wait()
                return reason


def _kill(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()


def _plain(config: Any) -> Any:
    """A configuration as JSON knows it: types and enums become text."""
    return json.loads(json.dumps(config, default=str))


def _tell_none(reason: object) -> None:
    _log.info("no plan for this run (%s): its budget is learned from the first steps", reason)


def sentence(plan: Mapping[str, Any]) -> str:
    """What the plan says, in one line."""
    device = plan["memory"]["device_bytes"]
    text = f"planned: {size(device['value'])} of GPU memory at the peak ({size(device['low'])} - {size(device['high'])})"
    longest = plan.get("longest_batches") or []
    if len(plan.get("peak_by_tokens") or []) > 1:
        step = longest[0]["step"]
        text += f", in the longest batch ({longest[0]['tokens']:,} tokens" + (f" at step {step:,})" if step is not None else ")")
    doubts = plan.get("not_understood") or []
    return f"{text}; {'; '.join(doubts)}" if doubts else text
