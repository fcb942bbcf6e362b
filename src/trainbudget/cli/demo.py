"""`trainbudget demo`: train a small real model here and now, with everything switched on."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from trainbudget.cli import OK
from trainbudget.errors import ConfigError

FRAMEWORKS = ("huggingface", "lightning", "loop")
DEFAULT_SCENARIO = "input_bound"


def add_parser(verbs: Any) -> None:
    parser = verbs.add_parser(
        "demo",
        help="train a small real model here and now, everything switched on",
        description="Trains a small transformer on the standard library's docstrings, on the CPU. Where there is no NVIDIA "
        "GPU a simulated one stands in, and is labelled as such.",
    )
    parser.add_argument("--framework", choices=FRAMEWORKS, default="huggingface")
    parser.add_argument("--scenario", metavar="NAME", help=f"what goes wrong (default: {DEFAULT_SCENARIO}; 'list' names them)")
    parser.add_argument("--steps", type=int, default=240, metavar="N", help="optimizer steps (default: 240)")
    parser.add_argument("--serve", action="store_true", help="keep the metrics page up after the end, until Ctrl-C")
    parser.add_argument("--json", action="store_true", help="one JSON value on stdout, everything else on stderr")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from trainbudget.gpu.mock import SCENARIOS

    if args.scenario == "list":
        print("\n".join(sorted(SCENARIOS)))
        return OK
    if args.scenario is not None and args.scenario not in SCENARIOS:
        raise ConfigError(f"unknown scenario {args.scenario!r}; there are: {', '.join(sorted(SCENARIOS))}")
    if args.steps < 1:
        raise ConfigError(f"--steps {args.steps}: at least 1")
    _need_torch(args.framework)
    with contextlib.redirect_stdout(sys.stderr) if args.json else contextlib.nullcontext():
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    from trainbudget.budget import Budget
    from trainbudget.demo.job import Job, train
    from trainbudget.engine.summary import replay_json
    from trainbudget.monitor import Monitor

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    scenario = args.scenario or DEFAULT_SCENARIO
    simulated = args.scenario is not None or not _has_gpu()
    budget = Budget(cost="0.05 USD", run_time="90 s", memory_peak="60 GiB")
    monitor = Monitor(
        framework=args.framework,
        budget=budget,
        price="2.49 USD/h",
        backend=os.environ.get("TRAINBUDGET_BACKEND") or (f"mock:{scenario}" if simulated else "auto"),
        run_name=f"demo-{args.framework}",
        steps_total=args.steps,
    )
    if monitor.inert:
        raise ConfigError("TRAINBUDGET_DISABLED is set: nothing would be shown")
    _print_intro(args, scenario, budget, simulated=simulated)
    monitor.start()
    error: BaseException | None = None
    with tempfile.TemporaryDirectory(prefix="trainbudget-demo-") as folder:
        job = Job(steps=args.steps, batch_size=8, scenario=scenario, output=Path(folder))
        try:
            train(args.framework, job, monitor)
        except (KeyboardInterrupt, SystemExit) as err:
            error = err
            monitor.exception(err)
    url = monitor.url
    monitor.close("finished" if error is None else "interrupted")
    report = monitor.report
    if report is None or monitor.directory is None:
        raise ConfigError("the demo ended without a report or a record; see the messages above")
    _print_outro(monitor)
    if args.serve and error is None and url is not None:
        _serve(report, url)
    if args.json:
        picture = replay_json(report)
        value = {"run_dir": str(monitor.directory), **{k: picture[k] for k in ("findings", "ledger", "summary")}}
        sys.__stdout__.write(json.dumps(value, allow_nan=False) + "\n")  # type: ignore[union-attr]
    return OK if error is None else 130


def _print_intro(args: argparse.Namespace, scenario: str, budget: Any, *, simulated: bool) -> None:
    from trainbudget.wording.numbers import duration, money, size

    device = f"simulated A100-80GB, scenario {scenario!r}" if simulated else "this machine's GPU is watched"
    print(f"trainbudget demo: a small language model on the standard library's docstrings, {args.steps} steps on the CPU")
    print(f"  device     {device}")
    print(
        f"  budget     {money(budget.cost, budget.currency)} · {duration(budget.run_time_s)} · {size(budget.memory_peak_bytes)}"
    )
    print("  price      2.49 USD/h for one GPU, given by the demo")
    print(flush=True)


def _print_outro(monitor: Any) -> None:
    print()
    print(f"  record     {os.path.relpath(monitor.directory)}")
    print(f"  again      trainbudget replay {os.path.relpath(monitor.directory)}")
    print("  next       add TrainBudgetCallback() to your own trainer; see README.md", flush=True)


def _serve(report: Any, url: str) -> None:
    """The finished run's last numbers, where they were, until Ctrl-C."""
    from trainbudget.sinks.prometheus import PrometheusSink

    page = PrometheusSink(url.removeprefix("http://"))
    page.write(report, [], [])
    print(f"\n  metrics    {page.url}/metrics stays up with the finished run; Ctrl-C ends it", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(3600)
    page.close()


def _has_gpu() -> bool:
    """Whether NVML shows a device; asked in a child with a time limit, for a driver may hang."""
    import subprocess

    code = "from trainbudget.gpu import open_backend as o; b = o('nvml'); import sys; sys.exit(0 if b.open() else 1)"
    try:
        return subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=20, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _need_torch(framework: str) -> None:
    from importlib.util import find_spec

    needed = {"huggingface": "transformers", "lightning": "lightning", "loop": "transformers"}[framework]
    missing = [name for name in ("torch", needed) if find_spec(name) is None]
    if framework == "huggingface" and find_spec("accelerate") is None:
        missing.append("accelerate")
    if missing:
        extra = "lightning" if framework == "lightning" else "hf"
        raise ConfigError(f"the demo needs {', '.join(missing)}: pip install 'trainbudget[{extra}]'")
