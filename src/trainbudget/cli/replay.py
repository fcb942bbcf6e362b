"""`trainbudget replay TRACE`: feed a recorded trace through the engine and print what it finds."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from trainbudget.cli import NO, OK


def add_parser(verbs: Any) -> None:
    parser = verbs.add_parser(
        "replay",
        help="feed a recorded trace through the engine",
        description="Feeds a recorded trace (trace.jsonl, .gz, or a run's directory) through the same engine as a live run.",
    )
    parser.add_argument("trace", metavar="TRACE", help="trace.jsonl, trace.jsonl.gz or a run's directory")
    parser.add_argument("--json", action="store_true", help="one JSON value on stdout")
    parser.add_argument("--fail-on", choices=("info", "warning", "critical"), help="exit 3 when a finding is this severe")
    parser.add_argument("--ignore", action="append", default=[], metavar="CODE", help="mute a finding code")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from trainbudget.engine.summary import replay_json
    from trainbudget.findings import Severity
    from trainbudget.live.pipeline import replay
    from trainbudget.trace import TraceReader
    from trainbudget.wording.closing import closing_table
    from trainbudget.wording.finding import finding_lines

    reader = TraceReader(args.trace)
    report = replay(reader, ignore=args.ignore)
    if args.json:
        print(json.dumps(replay_json(report), allow_nan=False))
    else:
        for finding in report.findings:
            print(f"{finding.severity.value.upper():<8} {finding.raised_s:>8.0f} s  " + "\n".join(finding_lines(finding, report)))
        print(closing_table(report))
    if reader.skipped:
        print(f"trainbudget: {reader.skipped} damaged lines were skipped", file=sys.stderr)
    if args.fail_on and any(f.severity.level >= Severity(args.fail_on).level for f in report.findings):
        return NO
    return OK
