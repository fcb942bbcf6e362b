"""`trainbudget run SCRIPT.py ARGS...`: an unmodified script with the monitor added; its exit code is ours."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

from trainbudget.cli import OK
from trainbudget.errors import ConfigError
from trainbudget.live.told_errors import is_interrupt


def add_parser(verbs: Any) -> None:
    parser = verbs.add_parser(
        "run",
        help="run an unmodified training script with the monitor added",
        description="Runs a script as `python SCRIPT.py ARGS...` would, with the callback added to every Hugging Face and "
        "Lightning Trainer in it. A script with its own loop is watched from outside: memory, idleness, money. "
        "Under torchrun: torchrun ... -m trainbudget run SCRIPT.py ARGS...",
    )
    parser.add_argument("--budget", metavar="MONEY", help="what the run may cost, for example '40 USD'")
    parser.add_argument("--run-time", metavar="TIME", help="how long it may take, for example 8h")
    parser.add_argument("--price", metavar="PRICE", help="for one GPU and hour, for example '2.49 USD/h'")
    parser.add_argument("--plan", metavar="FILE", help="a plan (trainbudget plan --json)")
    parser.add_argument("script", metavar="SCRIPT.py")
    parser.add_argument("arguments", metavar="ARGS", nargs=argparse.REMAINDER)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from trainbudget.budget import Budget
    from trainbudget.cli.attach import attach_to_frameworks, give_way_to_own_monitors
    from trainbudget.monitor import Monitor

    script = Path(args.script)
    if not script.is_file():
        raise ConfigError(f"{script}: no such script")
    if args.plan is not None and args.plan != "auto":
        _check_plan(args.plan)
    budget = Budget(cost=args.budget, run_time=args.run_time) if args.budget or args.run_time else None
    monitor = Monitor(framework="loop", budget=budget, price=args.price, plan=args.plan, run_name=script.stem)
    # What was asked for here reaches monitors of the script's own too, in this process and in those that it starts.
    given = {"TRAINBUDGET_BUDGET": args.budget, "TRAINBUDGET_PRICE": args.price, "TRAINBUDGET_PLAN": args.plan}
    os.environ.update({name: str(value) for name, value in given.items() if value is not None})
    attach_to_frameworks(monitor)
    give_way_to_own_monitors(monitor, script.name)
    monitor.start()
    return _run_script(script, args.arguments, monitor)


def _check_plan(path: str) -> None:
    """A bad plan is told before any training, as a bad price is.

    Raises:
        ConfigError: unreadable, or not a plan.
    """
    from trainbudget.live.plan_facts import plan_facts

    try:
        plan_facts(path)
    except (TypeError, ValueError, LookupError, AttributeError) as err:
        if isinstance(err, ConfigError):
            raise
        raise ConfigError(f"plan {path}: not a plan: {err}") from None


def _run_script(script: Path, arguments: list[str], monitor: Any) -> int:
    before = sys.argv, sys.path[0]
    sys.argv = [str(script), *arguments]
    sys.path[0] = str(script.parent.resolve())
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as err:
        code = err.code if isinstance(err.code, int) else OK if err.code is None else 1
        if isinstance(err.code, str):
            print(err.code, file=sys.stderr)
        _close(monitor, "finished" if code == 0 else "interrupted" if is_interrupt(err) else "failed")
        return code
    except BaseException as err:  # noqa: BLE001 - the script's own error: shown as Python would, then its exit code
        if monitor is not None:
            monitor.exception(err)
        _close(monitor, "interrupted" if isinstance(err, KeyboardInterrupt) else "failed")
        _print_as_python_would(err)
        return 130 if isinstance(err, KeyboardInterrupt) else 1
    finally:
        sys.argv, sys.path[0] = before
    _close(monitor, "finished")
    return OK


def _print_as_python_would(err: BaseException) -> None:
    """The traceback from the script's first frame on: ours and runpy's are not the user's business."""
    frame = err.__traceback__
    own = (os.path.dirname(__file__), os.path.dirname(runpy.__file__) + os.sep + "runpy.py", "<frozen runpy>")
    while frame is not None and frame.tb_next is not None and frame.tb_frame.f_code.co_filename.startswith(own):
        frame = frame.tb_next
    traceback.print_exception(type(err), err, frame)


def _close(monitor: Any | None, outcome: str) -> None:
    if monitor is not None:
        monitor.close(outcome)
