"""`trainbudget replay TRACE`: feed a recorded trace through the engine and print what it finds."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainbudget.cli import NO, OK
from trainbudget.errors import TraceError

if TYPE_CHECKING:
    from trainbudget.engine.report import Report

#: Runs named where there is no trace: the newest ones.
_MOST_NEARBY = 3
#: A record is written every half second and a tick at least every five: longer ago is silence.
_RECENT_S = 60.0


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

    try:
        reader = TraceReader(args.trace)
    except TraceError as err:
        raise TraceError(f"{err}{_nearby(Path(args.trace))}") from None
    report = replay(reader, ignore=args.ignore)
    if args.json:
        print(json.dumps(replay_json(report), allow_nan=False))
    else:
        for finding in report.findings:
            print(f"{finding.severity.value.upper():<8} {finding.raised_s:>8.0f} s  " + "\n".join(finding_lines(finding, report)))
        print(closing_table(report))
    if report.outcome is None:
        print(f"trainbudget: {_no_end(report, reader.paths[-1])}", file=sys.stderr)
    if reader.skipped:
        print(f"trainbudget: {reader.skipped} damaged lines were skipped", file=sys.stderr)
    if args.fail_on and any(f.severity.level >= Severity(args.fail_on).level for f in report.findings):
        return NO
    return OK


def _no_end(report: Report, path: Path) -> str:
    """A record without an end: its process was killed (nothing of ours handles signals), or it still runs."""
    from trainbudget.sinks.record import in_use

    ended = _last_moment(report)
    when = f" at {ended:%Y-%m-%d %H:%M:%S} UTC" if ended is not None else ""
    running = in_use(path.parent) if path.name == "trace.jsonl" else None
    if running:
        return f"no end: the run is still going on; its record reaches{when or ' until now'}"
    recent = ended is not None and abs((datetime.now(tz=timezone.utc) - ended).total_seconds()) < _RECENT_S
    maybe = "" if running is False and not recent else ", or still runs on another machine"
    return f"no end: the process was killed (SIGTERM, SIGKILL, power){maybe}; its last word was{when or ' not dated'}"


def _last_moment(report: Report) -> datetime | None:
    started = report.header.started_at
    try:
        return datetime.fromisoformat(started.replace("Z", "+00:00")) + timedelta(seconds=report.t_s) if started else None
    except ValueError:
        return None


def _nearby(path: Path) -> str:
    """The newest runs around a path that holds no trace, for whoever has mistaken the folder."""
    places = [p for p in (path, path / "trainbudget_runs", path.parent, path.parent / "trainbudget_runs") if p.is_dir()]
    traces = {trace for place in places for trace in place.glob("*/trace.jsonl")}
    newest = sorted(traces, key=lambda trace: trace.stat().st_mtime, reverse=True)[:_MOST_NEARBY]
    return f"; runs nearby: {', '.join(str(trace.parent) for trace in newest)}" if newest else ""
