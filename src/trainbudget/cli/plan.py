"""`trainbudget plan`: memory, step time, run time and cost before the run. Exit 0 fits, 2 bad input, 3 it will not fit."""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainbudget.cli.progress import Progress
from trainbudget.errors import ConfigError, TrainBudgetError

if TYPE_CHECKING:
    from trainbudget.plan.answer import Plan
    from trainbudget.plan.planner import Planner
    from trainbudget.plan.request import PlanRequest

_EPILOG = """\
three ways to say what is trained:
  trainbudget plan PLAN.toml                      a file (docs/plan.md lists its keys)
  trainbudget plan train.py --epochs 3            your own script, unmodified, stopped before it trains;
                                                  options of plan go before the script, the script's own after it
  trainbudget plan --model DIR --gpu A100-80GB --batch 4 --seq 2048 --lora 16
"""


_LENGTHS = ("steps", "tokens", "epochs", "samples", "measured_step")


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Declare the verb."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "plan",
        help="predict memory, step time, run time and cost before the run",
        description="Predict GPU memory, step time, run time and cost of a training run, without a GPU.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", nargs="?", metavar="PLAN.toml|SCRIPT.py", help="a plan file or a training script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="the script's own arguments")
    parser.add_argument("--json", action="store_true", help="print the plan as one JSON object")
    card = parser.add_argument_group("card and price")
    card.add_argument("--gpu", metavar="NAME", help="the card, for example A100-80GB (default for scripts: A100-80GB)")
    card.add_argument("--gpus", metavar="A,B,C", help="compare cards by the cost to finish")
    card.add_argument("--count", type=int, metavar="N", help="number of GPUs")
    card.add_argument("--memory-gib", type=float, metavar="X", help="usable memory of one card, where it differs from the table")
    card.add_argument("--price", metavar="PRICE", help="for one GPU and hour, for example '2.49 USD/h'")
    card.add_argument("--price-file", metavar="CSV", help="your own prices; beats the built-in table")
    card.add_argument("--instance", metavar="PROVIDER:TYPE[@REGION]", help="for example aws:p4d.24xlarge@us-east-1")
    card.add_argument("--spot", action="store_true", default=None, help="spot price")
    card.add_argument("--list-gpus", action="store_true", help="name every card of the table")
    model = parser.add_argument_group("model and training, without a file or script")
    model.add_argument("--model", metavar="DIR_OR_NAME", help="directory with a config.json, such a file, or a cached model name")
    model.add_argument(
        "--task", help="causal_lm (default), masked_lm, sequence_classification, seq2seq, image_classification, ..."
    )
    model.add_argument("--batch", type=int, metavar="N", help="examples a GPU and micro-step")
    model.add_argument("--seq", type=int, metavar="N", help="tokens an example")
    model.add_argument("--accumulate", type=int, metavar="N", help="gradient accumulation steps")
    model.add_argument("--precision", help="fp32, tf32, fp16, bf16 (autocast), bf16_pure, fp16_pure (default bf16)")
    model.add_argument("--optim", metavar="NAME", help="a Hugging Face optim name (default adamw_torch_fused)")
    model.add_argument("--checkpointing", action="store_true", default=None, help="activation checkpointing")
    model.add_argument("--lora", type=int, metavar="RANK", help="LoRA on all linear layers")
    model.add_argument("--qlora", type=int, metavar="RANK", help="LoRA over 4-bit weights")
    model.add_argument("--strategy", help="ddp, fsdp, fsdp2, zero1, zero2, zero3")
    length = parser.add_argument_group("length of the run")
    length.add_argument("--steps", type=int, metavar="N")
    length.add_argument("--tokens", type=float, metavar="N")
    length.add_argument("--epochs", type=float, metavar="X")
    length.add_argument("--samples", type=int, metavar="N", help="examples in one epoch")
    length.add_argument("--measured-step", type=float, metavar="SECONDS", help="a measured optimizer step; replaces the estimate")
    how = parser.add_argument_group("how")
    how.add_argument("--max-examples", type=int, metavar="N", help="a script's data sets keep N examples when they are tokenised")
    how.add_argument("--no-prepare-data", action="store_true", help="skip Lightning's prepare_data")
    how.add_argument("--batches", action="store_true", help="list the longest batches of the data set and the steps they come at")
    how.add_argument(
        "--no-search", action="store_true", help="skip the largest batch, the longest sequence and the changes (faster)"
    )
    parser.set_defaults(run=run, plan_parser=parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Plan and print; see the module for exit codes."""
    if args.list_gpus:
        return _list_gpus(args)
    try:
        return _run(args)
    except TrainBudgetError as error:
        print(f"trainbudget plan: {error}", file=sys.stderr)
        return 2


def _run(args: argparse.Namespace) -> int:
    _check_numbers(args)
    if args.what is None and args.model is None:
        raise ConfigError("nothing to plan: give PLAN.toml, a script, or --model (see trainbudget plan --help)")
    if args.what is not None and args.model is not None:
        raise ConfigError("give either a file or script, or --model")
    path = Path(args.what) if args.what is not None else None
    if path is not None and path.suffix != ".py" and args.arguments:
        # Behind a plan file there is no script whose options these could be.
        args = args.plan_parser.parse_args(args.arguments, argparse.Namespace(**{**vars(args), "arguments": []}))
        if args.what is not None:
            raise ConfigError(f"one plan file or script at a time: {path} or {args.what}?")
        args.what = str(path)
        _check_numbers(args)
    if path is not None and not path.exists():
        raise ConfigError(f"{path}: no such file")
    if path is not None and path.suffix == ".py":
        return _plan_script(args, path)
    return _plan_config(args, path)


def _check_numbers(args: argparse.Namespace) -> None:
    """Every number that can be given counts something: none is zero, negative or not finite."""
    from trainbudget.plan.choices import check_above_zero

    for name in ("count", "memory_gib", "batch", "seq", "accumulate", "lora", "qlora", *_LENGTHS, "max_examples"):
        value = getattr(args, name)
        if value is not None:
            check_above_zero(f"--{name.replace('_', '-')}", value)


def _plan_config(args: argparse.Namespace, path: Path | None) -> int:
    from trainbudget.plan.plan_file import plan_of, read_plan

    request = read_plan(path) if path is not None else plan_of(_flag_tables(args), where="--model", vocabulary="flags")
    if path is not None:
        request = _with_flags(request, args)
    from dataclasses import replace

    from trainbudget.plan.model_config import config_of, title_of

    config = config_of(request.model)
    request = replace(request, model=config, title=title_of(request.model, request.spec))
    try:
        return _answer(args, request, _job(args, request, model_config=config))
    except ConfigError as error:  # an unknown kind of model, a configuration its class refuses
        if not isinstance(config, dict):
            raise
        return _by_formulas(args, request, str(error))


def _plan_script(args: argparse.Namespace, path: Path) -> int:
    from trainbudget.plan.script.tracing_process import OwnLoop, ScriptRefused

    request = _script_base(args)
    job = _job(args, request, script=str(path), arguments=list(args.arguments))
    try:
        return _answer(args, request, job, script=True)
    except OwnLoop as error:
        print(f"trainbudget plan: {path.name}: {error}; describe the run instead:\n\n{_TOML_WAY}", file=sys.stderr)
        return 2
    except ScriptRefused as error:
        return _refused(args, request, path, error)


def _refused(args: argparse.Namespace, request: PlanRequest, path: Path, error: Any) -> int:
    """A script that cannot be traced by its nature: formulas, where the model's configuration is known."""
    from trainbudget.plan.planner import request_of_script

    if error.facts is None or not error.facts.model_config:
        raise ConfigError(f"{path.name}: {error}")
    return _by_formulas(args, request_of_script(error.facts, request), f"{path.name}: {error}")


def _by_formulas(args: argparse.Namespace, request: PlanRequest, reason: str) -> int:
    from trainbudget.plan.instance import detect_instance
    from trainbudget.plan.planner import plan_by_formulas

    plan = plan_by_formulas(request, reason, machine=detect_instance(), today=datetime.date.today())
    print(f"trainbudget plan: {reason}: formulas instead of a trace", file=sys.stderr)
    _print(args, plan)
    return 3 if plan.fits is False else 0


def _job(args: argparse.Namespace, request: PlanRequest, **what: Any) -> Any:
    from trainbudget.plan.planner import target_of
    from trainbudget.plan.script.protocol import Job, Question

    return Job(
        question=Question(spec=request.spec, target=target_of(request)),
        max_examples=args.max_examples,
        prepare_data=not args.no_prepare_data,
        **what,
    )


def _answer(args: argparse.Namespace, request: PlanRequest, job: Any, script: bool = False) -> int:
    from trainbudget.plan.instance import detect_instance
    from trainbudget.plan.layers.tracer import LayerTracer
    from trainbudget.plan.planner import Planner, request_of_script
    from trainbudget.plan.script.tracing_process import TracingProcess

    say = Progress(sys.stderr)
    say("running the script up to its training loop" if script else "reading the model")
    with TracingProcess(job) as process:
        one_trace = args.no_search and not args.gpus
        planner = Planner(
            tracer=process if script or one_trace else LayerTracer(process, request.model),
            today=datetime.date.today(),
            machine=detect_instance(),
            search=not args.no_search,
            say=say,
        )
        if script:
            request = request_of_script(process.facts, request, strategy=args.strategy)
        if args.gpus:
            return _compare(args, planner, request, say)
        plan = planner.plan(request)
    say.done()
    _print(args, plan)
    return 3 if plan.fits is False else 0


def _compare(args: argparse.Namespace, planner: Planner, request: PlanRequest, say: Progress) -> int:
    from dataclasses import replace

    from trainbudget.plan.hardware import require_gpu
    from trainbudget.plan.planner import on_card

    planner.search = planner.shapes = False
    found: list[tuple[str, Plan | str]] = []
    for name in (n.strip() for n in args.gpus.split(",") if n.strip()):
        card = require_gpu(name)
        wanted = on_card(request, card)
        if args.price or args.price_file:
            wanted = replace(wanted, charges=request.charges)
        try:
            found.append((card.name, planner.plan(wanted)))
        except ConfigError as error:
            found.append((card.name, str(error)))
    say.done()
    plans = [p for _, p in found if not isinstance(p, str)]
    if args.json:
        print(json.dumps({"cards": [{"gpu": n, "error": p} if isinstance(p, str) else p.to_json() for n, p in found]}))
    else:
        from trainbudget.plan.table import headline, render_comparison

        if plans:
            print(headline(plans[0]).rsplit(" · ", 1)[0] + "\n")
        print(render_comparison(found, width=_width(), unicode=_unicode()), end="")
    return 0 if any(p.fits is not False for p in plans) else 3


def _print(args: argparse.Namespace, plan: Plan) -> None:
    if args.json:
        print(json.dumps(plan.to_json()))
        return
    from trainbudget.plan.table import render_plan

    print(render_plan(plan, width=_width(), unicode=_unicode(), batches=args.batches), end="")


def _width() -> int:
    return shutil.get_terminal_size((100, 24)).columns


def _unicode() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") in ("utf8", "utf16")


def _flag_tables(args: argparse.Namespace) -> dict[str, Any]:
    if args.gpu is None and not args.gpus:
        raise ConfigError("--model needs --gpu, for example --gpu A100-80GB")
    if args.lora is not None and args.qlora is not None:
        raise ConfigError("--lora and --qlora contradict each other: give one")
    rank = args.lora or args.qlora
    train = {
        "micro_batch": 1 if args.batch is None else args.batch,
        "sequence_length": 512 if args.seq is None else args.seq,
        "gradient_accumulation": args.accumulate,
        "precision": args.precision or "bf16",
        "optimizer": args.optim or "adamw_torch_fused",
        "activation_checkpointing": args.checkpointing,
        "peft": {"type": "lora", "r": rank, "target_modules": "all-linear"} if rank else None,
        "quantization": "nf4" if args.qlora else None,
        "steps": args.steps,
        "tokens": args.tokens,
        "epochs": args.epochs,
        "samples": args.samples,
        "measured_step_time_s": args.measured_step,
    }
    tables = {
        "model": {"config": args.model, "task": args.task},
        "train": train,
        "parallel": {"strategy": args.strategy, "world_size": args.count},
        "gpu": _gpu_table(args),
    }
    return {name: {k: v for k, v in table.items() if v is not None} for name, table in tables.items()}


def _gpu_table(args: argparse.Namespace) -> dict[str, Any]:
    from trainbudget.plan.instance import parse_instance

    where = parse_instance(args.instance) if args.instance else None
    name = args.gpu or (args.gpus or "A100-80GB").split(",")[0].strip()
    return {
        "name": name,
        "count": args.count,
        "memory_gib": args.memory_gib,
        "price_per_hour": args.price,
        "price_file": str(Path(args.price_file).resolve()) if args.price_file else None,
        "provider": where.provider if where else None,
        "instance": where.instance if where else None,
        "region": where.region if where else None,
        "spot": args.spot,
    }


def _script_base(args: argparse.Namespace) -> PlanRequest:
    from trainbudget.plan.plan_file import plan_of

    told = [
        f for f in ("batch", "seq", "accumulate", "precision", "optim", "lora", "qlora", "task") if getattr(args, f) is not None
    ]
    if told:
        raise ConfigError(f"--{told[0]} is the script's own business: give it to the script, after its name")
    train = {"steps": args.steps, "measured_step_time_s": args.measured_step}
    tables: dict[str, dict[str, Any]] = {"model": {"config": {}}, "train": train, "gpu": _gpu_table(args)}
    if args.strategy:
        tables["parallel"] = {"strategy": args.strategy}
    return plan_of({n: {k: v for k, v in t.items() if v is not None} for n, t in tables.items()}, where="plan")


def _with_flags(request: PlanRequest, args: argparse.Namespace) -> PlanRequest:
    """Card and price flags beat the file's."""
    from dataclasses import replace

    from trainbudget.plan.hardware import require_gpu
    from trainbudget.plan.instance import parse_instance
    from trainbudget.plan.request import Charges

    if args.gpu:
        request = replace(request, gpu=require_gpu(args.gpu), memory_gib=None)
    if args.memory_gib is not None:
        request = replace(request, memory_gib=args.memory_gib)
    if args.price or args.price_file or args.instance:
        where = parse_instance(args.instance) if args.instance else None
        charges = Charges(
            given=args.price,
            file=Path(args.price_file) if args.price_file else None,
            provider=where.provider if where else None,
            instance=where.instance if where else None,
            region=where.region if where else None,
            spot=args.spot,
        )
        request = replace(request, charges=charges)
    if args.steps is not None:
        request = replace(request, duration=replace(request.duration, steps=args.steps, tokens=None, epochs=None))
    if args.measured_step is not None:
        request = replace(request, duration=replace(request.duration, measured_step_time_s=args.measured_step))
    return request


def _list_gpus(args: argparse.Namespace) -> int:
    from trainbudget.plan.hardware import GIB, gpus

    if args.json:
        print(
            json.dumps(
                [{"name": g.name, "memory_limit_bytes": g.memory_limit_bytes, "unverified": list(g.unverified)} for g in gpus()]
            )
        )
        return 0
    for g in gpus():
        mark = f"   not verified: {', '.join(g.unverified)}" if g.unverified else ""
        print(f"{g.name:<26}{(g.memory_limit_bytes or 0) / GIB:>7.1f} GiB   {g.nvml_names[0]}{mark}")
    return 0


_TOML_WAY = """\
    [model]
    config = "config.json"        # or import = "my.module:build_model"
    [train]
    micro_batch = 4
    sequence_length = 1024
    precision = "bf16"
    optimizer = "adamw_torch"
    loop = "plain"
    steps = 1000
    [gpu]
    name = "A100-80GB"

  saved as PLAN.toml:  trainbudget plan PLAN.toml"""
