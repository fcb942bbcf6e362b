"""The child process of `plan="auto"`: plans a training that is running, by its script planned again, else by a description.

Reads a `Running` from the file that is its argument, prints one JSON value: the plan, or {"error": text}.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from trainbudget.errors import ConfigError, TrainBudgetError
from trainbudget.plan.answer import Plan
from trainbudget.plan.instance import detect_instance
from trainbudget.plan.plan_file import plan_of
from trainbudget.plan.planner import Planner, plan_by_formulas, request_of_script, target_of
from trainbudget.plan.request import PlanRequest
from trainbudget.plan.script.background import end_with, step_back
from trainbudget.plan.script.protocol import Job, Question, Running
from trainbudget.plan.script.tracing_process import TracingProcess

#: Trainable parameters of the running model and of the script's may differ by this: heads and embeddings made on the way.
_SAME_MODEL_RATIO = 0.01


def plan_running(running: Running) -> Plan:
    """The plan of a training that is running.

    Raises:
        TrainBudgetError: in one line why there is none.
    """
    gpu = {name: value for name, value in running.gpu.items() if value is not None}
    if running.script is not None or running.module is not None:
        return _by_script(running, gpu)
    tables = {**running.tables, "gpu": gpu}
    tables["model"] = {**tables.get("model", {}), "config": running.model_config}
    return _by_tables(plan_of(tables, where="plan"))


def _by_script(running: Running, gpu: dict[str, Any]) -> Plan:
    base = plan_of({"model": {"config": {}}, "train": {}, "gpu": gpu}, where="plan")
    job = Job(
        question=Question(spec=base.spec, target=target_of(base)),
        script=running.script,
        module=running.module,
        arguments=running.arguments,
        beside=True,
    )
    with TracingProcess(job) as process:
        plan = _planner(process).plan(request_of_script(process.facts, base))
    _check_same(running, plan)
    return plan


def _check_same(running: Running, plan: Plan) -> None:
    """A script may train several models one after the other; it is caught at the first.

    Raises:
        ConfigError: what was planned is not what is running.
    """
    wanted, found = running.trainable_parameters, plan.trainable_parameters
    if not wanted or not found or plan.request.spec.world_size > 1:  # a sharded module shows its own part
        return
    if abs(found - wanted) > _SAME_MODEL_RATIO * wanted:
        raise ConfigError(f"the script trains another model first ({found:,} trainable parameters, this one has {wanted:,})")


def _by_tables(request: PlanRequest) -> Plan:
    from trainbudget.plan.model_config import config_of, title_of

    config = config_of(request.model)
    request = replace(request, model=config, title=title_of(request.model, request.spec))
    job = Job(question=Question(spec=request.spec, target=target_of(request)), model_config=config)
    try:
        with TracingProcess(job) as process:
            return _planner(process).plan(request)
    except ConfigError as error:
        if not isinstance(config, dict):
            raise
        return plan_by_formulas(request, str(error), machine=detect_instance(), today=datetime.date.today())


def _planner(process: TracingProcess) -> Planner:
    return Planner(tracer=process, today=datetime.date.today(), machine=detect_instance(), search=False)


def main(arguments: list[str]) -> int:
    """Plan and print. Arguments: the file with what is running, the process that trains."""
    step_back()
    if len(arguments) > 1:
        end_with(int(arguments[1]))
    running = msgspec.json.decode(Path(arguments[0]).read_bytes(), type=Running)
    try:
        answer: dict[str, Any] = plan_running(running).to_json()
    except TrainBudgetError as error:
        answer = {"error": str(error)}
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)
