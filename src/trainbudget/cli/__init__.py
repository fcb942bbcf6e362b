"""The command line: one verb, one file. Exit codes: 0 ok, 1 our fault, 2 usage or bad input, 3 the answer is no."""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

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

#: A place that takes no more: full, over quota, over the largest file, failing.
_REFUSES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class OneLineParser(argparse.ArgumentParser):
    """Errors are one line, as all of ours are; the usage is what --help is for."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"{self.prog}: error: {' '.join(message.split())} ({self.prog} --help)\n")


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
        _silence_stdout()  # the reader (`| head`) has gone
        return OK
    except Exception as err:
        if isinstance(err, OSError) and err.errno in _REFUSES and _stdout_refuses():
            _silence_stdout()
            print(f"trainbudget: cannot write the answer: {err.strerror}", file=sys.stderr)
            return OUR_FAULT
        if os.environ.get("TRAINBUDGET_DEBUG") == "1":
            raise
        print(f"trainbudget: internal error: {type(err).__name__}: {err} (TRAINBUDGET_DEBUG=1 shows more)", file=sys.stderr)
        return OUR_FAULT


def _run(argv: list[str]) -> int:
    parser = build_parser(argv[0] if argv and argv[0] in VERBS else None)
    args, unknown = parser.parse_known_args(argv)
    if unknown:  # told by the verb, whose --help names what there is
        parser.prog = f"trainbudget {args.verb}" if args.verb else parser.prog
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if args.verb is None:
        parser.print_help()
        return BAD_INPUT
    code = int(args.run(args))
    if args.verb != "run" and sys.stdout is not None:  # what a script has left in the buffer is told as Python would
        sys.stdout.flush()
    return code


def _stdout_refuses() -> bool:
    """Whether it is the answer that cannot be written, and not some other file."""
    try:
        sys.stdout.flush()
        os.write(sys.stdout.fileno(), b"\n")
    except (OSError, ValueError, AttributeError):
        return True
    return False


def _silence_stdout() -> None:
    """The flush at exit must say nothing either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def build_parser(verb: str | None = None) -> argparse.ArgumentParser:
    """The parser; only the asked verb's module is imported."""
    from trainbudget import __version__

    parser = OneLineParser(prog="trainbudget", description="A live budget for training runs.")
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
