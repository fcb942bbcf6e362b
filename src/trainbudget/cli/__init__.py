"""The command line: one verb, one file. Exit codes: 0 ok, 1 our fault, 2 usage or bad input, 3 the answer is no."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from trainbudget.errors import TrainBudgetError

#: Verb -> what it does, in the order of a run's life.
VERBS = {
    "demo": "train a small real model here and now, everything switched on",
    "plan": "predict memory, step time, run time and cost before the run",
    "run": "run an unmodified training script with the monitor added",
    "replay": "feed a recorded trace through the engine",
    "doctor": "say why there is no GPU data, and what would be watched",
}

OK, OUR_FAULT, BAD_INPUT, NO = 0, 1, 2, 3


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; never a traceback unless TRAINBUDGET_DEBUG=1."""
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except TrainBudgetError as err:
        print(f"trainbudget: {err}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("trainbudget: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader (`| head`) has gone: silence the flush at exit too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except Exception as err:
        if os.environ.get("TRAINBUDGET_DEBUG") == "1":
            raise
        print(f"trainbudget: internal error: {type(err).__name__}: {err} (TRAINBUDGET_DEBUG=1 shows more)", file=sys.stderr)
        return OUR_FAULT


def _run(argv: list[str]) -> int:
    parser = build_parser(argv[0] if argv and argv[0] in VERBS else None)
    args = parser.parse_args(argv)
    if args.verb is None:
        parser.print_help()
        return BAD_INPUT
    return int(args.run(args))


def build_parser(verb: str | None = None) -> argparse.ArgumentParser:
    """The parser; only the asked verb's module is imported."""
    from trainbudget import __version__

    parser = argparse.ArgumentParser(prog="trainbudget", description="A live budget for training runs.")
    parser.add_argument("--version", action="version", version=f"trainbudget {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs")
    for name, text in VERBS.items():
        if verb in (None, name):
            module = importlib.import_module(f"trainbudget.cli.{name}") if name == verb else None
            if module is not None:
                module.add_parser(verbs)
            else:
                verbs.add_parser(name, help=text, add_help=False)
    return parser
