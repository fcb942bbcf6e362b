"""The child process of `trainbudget plan`: runs a script up to its training loop (or reads a model configuration), then answers
questions, each in a fork of its own: an operator that aborts the process takes only its fork along.

Protocol: one JSON value a line, lists of questions on one pipe, lists of answers on another; traces travel as files.
"""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
import sys
import time
import traceback
from pathlib import Path
from typing import IO, Any

import msgspec

from trainbudget.errors import TrainBudgetError
from trainbudget.plan.script.capture import Captured, Catch, Stop
from trainbudget.plan.script.protocol import Facts, Job, Question


def main(arguments: list[str]) -> int:
    """Serve until the questions end. Arguments: job file, question pipe, answer pipe."""
    job = msgspec.json.decode(Path(arguments[0]).read_bytes(), type=Job)
    questions, answers = os.fdopen(int(arguments[1]), "r"), os.fdopen(int(arguments[2]), "w")
    started = time.monotonic()
    try:
        captured = _run_script(job, answers, started) if job.script or job.module else _read_config(job)
    except TrainBudgetError as error:
        _say(answers, {"kind": "bad", "reason": _line(error)})
        return 2
    if captured is None:
        return 0
    _say(answers, {"kind": "ready", "facts": msgspec.to_builtins(captured.facts)})
    for line in questions:
        _say(answers, {"answers": _answers_to(captured, line)})
    return 0


def _say(pipe: IO[str], message: dict[str, Any]) -> None:
    pipe.write(json.dumps(message) + "\n")
    pipe.flush()


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:300]


def _answers_to(captured: Captured, line: str) -> list[dict[str, Any]]:
    """Trace what one line asks for, side by side."""
    asked = [(msgspec.convert(one["question"], Question), Path(one["path"])) for one in json.loads(line)]
    for question, _ in asked:
        captured.prepare(question)
    children = [_fork(captured, question, path) for question, path in asked]
    return [_outcome(child, path) for child, (_, path) in zip(children, asked, strict=True)]


def _fork(captured: Captured, question: Question, path: Path) -> int:
    """Trace in a fork; its standard error tells why, should it die."""
    child = os.fork()
    if child != 0:
        return child
    code = 1
    try:
        with path.with_suffix(".log").open("w") as file:
            os.dup2(file.fileno(), 2)
        from trainbudget.plan.memory import encode_trace

        trace = captured.trace(question)
        path.write_bytes(encode_trace(msgspec.structs.replace(trace, spec=question.spec)))
        code = 0
    except BaseException as error:  # noqa: BLE001 - the fork's only way to speak is its log
        sys.stderr.write(f"trainbudget-{'config' if _is_config(error) else 'failed'}: {type(error).__name__}: {_line(error)}\n")
        if os.environ.get("TRAINBUDGET_PLAN_DEBUG"):
            traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _outcome(child: int, path: Path) -> dict[str, Any]:
    _, status = os.waitpid(child, 0)
    if status == 0:
        return {"ok": True}
    from trainbudget.plan.tracing.subprocess import _failure

    failure = _failure(status, path.with_suffix(".log").read_text(errors="replace"))
    return {
        "ok": False,
        "bad": _is_config(failure),
        "reason": _line(failure).removeprefix("TraceFailed: ").removeprefix("ConfigError: "),
    }


def _is_config(error: BaseException) -> bool:
    from trainbudget.errors import ConfigError

    return isinstance(error, ConfigError)


def _read_config(job: Job) -> Captured:
    from trainbudget.plan.memory import trace_config
    from trainbudget.plan.tracing.from_config import import_model_code, model_builder

    builder = model_builder(job.model_config, job.question.spec)  # tells bad input early

    def prepare(question: Question) -> None:
        if builder.config is not None:
            import_model_code(builder.config, question.spec)

    facts = Facts(
        framework="plan", title="", spec={}, model_config=builder.config.to_dict() if builder.config is not None else None
    )
    return Captured(
        facts=facts, trace=lambda question: trace_config(job.model_config, question.spec, question.target), prepare=prepare
    )


def _run_script(job: Job, answers: IO[str], started: float) -> Captured | None:
    """Run the script until it trains; None when it was refused, which has been said."""
    from trainbudget.plan.simulated_device.cuda import Patches, cuda_answers

    catch, patches = Catch(), Patches()
    outcome: BaseException | None = None
    with cuda_answers(job.question.target):
        try:
            _prepare(job, catch, patches)
            _run(job)
        except BaseException as error:  # noqa: BLE001 - whatever a script raises becomes one line
            outcome = error
            if os.environ.get("TRAINBUDGET_PLAN_DEBUG"):
                traceback.print_exc()
        finally:
            patches.put_back()
            catch.untouched.release()
    if catch.captured is not None:
        catch.captured.facts.startup_s = time.monotonic() - started
        return catch.captured
    _say(answers, _refusal(catch, outcome))
    return None


def _run(job: Job) -> None:
    """As Python itself would."""
    if job.module is not None:
        sys.argv = [job.module, *job.arguments]
        runpy.run_module(job.module, run_name="__main__", alter_sys=True)
        return
    sys.argv = [str(job.script), *job.arguments]
    sys.path.insert(0, str(Path(str(job.script)).resolve().parent))
    runpy.run_path(str(job.script), run_name="__main__")


def _prepare(job: Job, catch: Catch, patches: Any) -> None:
    from trainbudget.plan.script import host, lightning
    from trainbudget.plan.script.models import build_without_weights

    catch.world_size = int(job.launched.get("WORLD_SIZE") or job.question.spec.world_size)
    catch.prepare_data = job.prepare_data
    if job.beside:
        catch.untouched.install(patches)
    catch.host.__enter__()
    host.tame_libraries(patches, catch.asked_to_compile)
    if job.max_examples is not None:
        catch.notes.append(f"at most {job.max_examples} examples were prepared (--max-examples)")
        catch.kept = host.limit_data(patches, job.max_examples)
    host.refuse_own_loops(patches, catch)
    if importlib.util.find_spec("transformers") is not None:
        from trainbudget.plan.script import huggingface

        build_without_weights(patches, catch.built)
        huggingface.intercept(patches, catch)
    lightning.intercept(patches, catch)


def _refusal(catch: Catch, outcome: BaseException | None) -> dict[str, Any]:
    facts = None if catch.facts is None else msgspec.to_builtins(catch.facts)
    if catch.refused is not None:
        return {"kind": "refused", "reason": catch.refused, "facts": facts}
    if catch.own_loop is not None:
        return {"kind": "own_loop", "reason": catch.own_loop}
    if outcome is None or isinstance(outcome, Stop):
        return {"kind": "own_loop", "reason": "the script ended without calling Trainer.train() or Trainer.fit()"}
    if isinstance(outcome, SystemExit):
        return {"kind": "failed", "reason": f"the script called sys.exit({outcome.code!r}) before it trained"}
    if isinstance(outcome, TrainBudgetError):
        return {"kind": "bad", "reason": _line(outcome)}
    place = _place(outcome)
    return {"kind": "failed", "reason": f"the script raised {type(outcome).__name__} before it trained{place}: {_line(outcome)}"}


def _place(error: BaseException) -> str:
    """Where in the script: its own last line on the stack."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == sys.argv[0]]
    return f" (line {frames[-1].lineno})" if frames else ""


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a script's threads and atexit handlers have nothing left to do
