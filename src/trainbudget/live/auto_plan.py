"""`plan="auto"`: the planner in a low-priority child process, started with the first batch; training never waits for it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainbudget.events import AnyEvent
from trainbudget.live.plan_facts import facts_of_plan

_log = logging.getLogger("trainbudget")

#: The largest models are traced in under a minute (bench/prediction); a machine that is busy training gets ten times that.
PATIENCE_S = 600.0


class AutoPlan:
    """Runs `trainbudget plan` once. `tell(fact)` is called on our own thread with what it answers."""

    def __init__(self, tell: Callable[[AnyEvent], None]) -> None:
        self._tell = tell
        self.started = False
        self.child: subprocess.Popen[bytes] | None = None

    def start(self, request: Callable[[], Mapping[str, Any]]) -> None:
        """Begin, once; `request` gives the plan's tables and is called on our thread."""
        if self.started:
            return
        self.started = True
        threading.Thread(target=self._run, args=(request,), name="trainbudget-plan", daemon=True).start()

    def stop(self) -> None:
        """End the child; the run is over or goes away."""
        child = self.child
        if child is not None and child.poll() is None:
            child.kill()

    def _run(self, request: Callable[[], Mapping[str, Any]]) -> None:
        try:
            with tempfile.TemporaryDirectory(prefix="trainbudget-plan-") as folder:
                plan = self._ask(Path(folder), request())
            for fact in facts_of_plan(plan):
                self._tell(fact)
            for text in plan.get("not_understood") or ():
                _log.info("plan: not modelled: %s", text)
        except Exception as err:  # noqa: BLE001 - without a plan the run goes on with a learned budget
            _log.info("no plan for this run (%s): the budget is learned from the first steps", err)

    def _ask(self, folder: Path, tables: Mapping[str, Any]) -> dict[str, Any]:
        config = folder / "config.json"
        config.write_text(json.dumps(tables["config"], default=str), encoding="utf-8")
        file = folder / "plan.toml"
        file.write_text(toml_of({**tables["tables"], "model": {**tables["tables"].get("model", {}), "config": str(config)}}),
                        encoding="utf-8")  # fmt: skip
        command = [sys.executable, "-m", "trainbudget", "plan", str(file), "--json"]
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "TRAINBUDGET_DISABLED": "1"}
        self.child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=environment
        )
        with contextlib.suppress(AttributeError, OSError):
            os.setpriority(os.PRIO_PROCESS, self.child.pid, 19)
        try:
            answer, said = self.child.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.stop()
            raise TimeoutError(f"no answer within {PATIENCE_S:.0f} s") from None
        if not answer.strip():
            lines = said.decode(errors="replace").strip().splitlines()
            raise ValueError(lines[-1] if lines else "no answer")
        plan: dict[str, Any] = json.loads(answer)
        return plan


def toml_of(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Plain tables as TOML; None is left out."""
    lines = []
    for table, values in tables.items():
        lines.append(f"[{table}]")
        lines += [f"{name} = {_toml(value)}" for name, value in values.items() if value is not None]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items() if v is not None) + " }"
    if isinstance(value, (list, tuple, set, frozenset)):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    # Strings, numbers and booleans are written alike in JSON and TOML.
    return json.dumps(value)
