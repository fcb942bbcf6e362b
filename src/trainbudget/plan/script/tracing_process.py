"""The parent's side of a tracing process: start it for a script or a model configuration, ask it for traces, end it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from trainbudget.errors import ConfigError, TrainBudgetError
from trainbudget.plan.script.environment import quiet_environment
from trainbudget.plan.script.protocol import Facts, Job, Question
from trainbudget.plan.tracing.failure import TraceFailed
from trainbudget.plan.tracing.trace import Trace, decode_trace
from trainbudget.plan.train_spec import TargetGpu, TrainSpec

#: A script that only prepares data and builds a model; tokenising a large corpus is what takes minutes (`--max-examples`).
START_TIMEOUT_S = 900.0


def _key(question: Question) -> tuple[bytes, bool]:
    # The card enters a trace only through its compute capability.
    return msgspec.msgpack.encode((question.spec, question.target.compute_capability)), question.longest


class OwnLoop(TrainBudgetError):
    """The script trains in a loop of its own: there is no door to catch it at."""


class ScriptRefused(TrainBudgetError):
    """The script cannot be traced by its nature; `facts` allow an analytic answer where they are known."""

    def __init__(self, text: str, facts: Facts | None) -> None:
        super().__init__(text)
        self.facts = facts


class TracingProcess:
    """A child that holds a script at its training loop, or a model configuration, and traces its step on request.

    Raises:
        ConfigError: bad input: unreadable, not on this machine, or the script failed before it trained.
        OwnLoop, ScriptRefused: see there.
    """

    def __init__(self, job: Job, *, nice: int = 0, timeout_s: float = START_TIMEOUT_S) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="trainbudget-plan-")
        self._traces: dict[tuple[bytes, bool], Trace | TrainBudgetError] = {}
        environment, launched = quiet_environment(dict(os.environ))
        job = msgspec.structs.replace(job, launched=launched)
        self._beside = job.beside
        if job.beside:
            environment["TMPDIR"] = environment["TRAINBUDGET_PLAN_SCRATCH"]
        path = Path(self._folder.name, "job.json")
        path.write_bytes(msgspec.json.encode(job))
        self._output = Path(self._folder.name, "output.log")
        asked_end, self._ask = os.pipe()
        self._answers, answered_end = os.pipe()
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "trainbudget.plan.script.runner", str(path), str(asked_end), str(answered_end)],
                pass_fds=(asked_end, answered_end),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=not job.beside,  # its data workers end with it; beside a training all of us end together
                preexec_fn=(lambda: os.nice(nice) and None) if nice else None,  # noqa: PLW1509 - nothing else runs in the child
            )
        os.close(asked_end)
        os.close(answered_end)
        self._reader = os.fdopen(self._answers, "r")
        self._scratch = environment["TRAINBUDGET_PLAN_SCRATCH"]
        try:
            self.facts = self._started(timeout_s)
        except BaseException:
            self.close()
            raise

    def _started(self, timeout_s: float) -> Facts:
        timer = threading.Timer(timeout_s, self._kill)
        timer.start()
        try:
            message = self._hear()
        finally:
            timer.cancel()
        kind, reason = message.get("kind"), str(message.get("reason", ""))
        if kind == "ready":
            return msgspec.convert(message["facts"], Facts)
        if kind == "own_loop":
            raise OwnLoop(reason)
        if kind == "refused":
            facts = message.get("facts")
            raise ScriptRefused(reason, None if facts is None else msgspec.convert(facts, Facts))
        if kind is None:
            tail = self._tail()
            ended = "took too long (try --max-examples)" if self._process.poll() in (None, -signal.SIGKILL) else "ended early"
            raise ConfigError(f"the script's process {ended}: {tail}")
        raise ConfigError(reason)

    def _hear(self) -> dict[str, Any]:
        line = self._reader.readline()
        return json.loads(line) if line else {}

    def _tail(self) -> str:
        lines = [line.strip() for line in self._output.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1][:240] if lines else "it printed nothing"

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    def output(self) -> str:
        """What the script printed."""
        return self._output.read_text(errors="replace")

    def trace(self, spec: TrainSpec, target: TargetGpu, *, longest: bool = True) -> Trace:
        """The traced step of this configuration; asked once, remembered.

        Raises:
            TraceFailed: in one line why it cannot be traced.
        """
        question = Question(spec=spec, target=target, longest=longest)
        if _key(question) not in self._traces:
            self._ask_for([question])
        found = self._traces[_key(question)]
        if isinstance(found, TrainBudgetError):
            raise found
        return found

    def ahead(self, specs: Sequence[TrainSpec], target: TargetGpu) -> None:
        """Trace these side by side; `trace` then answers at once, failures included."""
        wanted = [Question(spec=spec, target=target) for spec in specs]
        self._ask_for([question for question in wanted if _key(question) not in self._traces])

    def _ask_for(self, questions: list[Question]) -> None:
        if not questions:
            return
        paths = [Path(self._folder.name, f"trace-{len(self._traces)}-{place}") for place in range(len(questions))]
        message = [{"question": msgspec.to_builtins(q), "path": str(path)} for q, path in zip(questions, paths, strict=True)]
        try:
            os.write(self._ask, (json.dumps(message) + "\n").encode())
            answers = self._hear().get("answers") or [{}] * len(questions)
        except OSError as error:
            answers = [{"reason": f"the tracing process is gone: {error}"}] * len(questions)
        for question, path, answer in zip(questions, paths, answers, strict=True):
            self._traces[_key(question)] = self._taken(answer, path)

    def _taken(self, answer: dict[str, Any], path: Path) -> Trace | TrainBudgetError:
        if answer.get("ok"):
            trace = decode_trace(path.read_bytes())
            path.unlink()
            return trace
        reason = str(answer.get("reason") or f"the tracing process is gone: {self._tail()}")
        if answer.get("bad"):
            return ConfigError(reason)
        return TraceFailed(reason)

    def _kill(self) -> None:
        if self._process.poll() is not None:
            return
        if self._beside:
            self._process.kill()
        else:
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the child and remove its files."""
        with contextlib.suppress(OSError):
            os.close(self._ask)
        self._reader.close()
        self._kill()
        self._process.wait()
        self._folder.cleanup()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def __enter__(self) -> TracingProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
