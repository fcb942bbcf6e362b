"""How many facts a second the engine takes with all detectors.

    python bench/replay/run.py [TRACE ...] [--healthy N] [--repeat 3] [--profile] [--json]

Without a trace it feeds N generated healthy hours (tests/healthy). Decoding is not counted. The figure is of one core's
CPU time, so that other work on the machine does not count; the best of the repeats.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import pstats
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from trainbudget.engine.engine import Engine
from trainbudget.events import AnyEvent
from trainbudget.trace import read_trace


def runs(paths: list[str], healthy: int) -> list[list[AnyEvent]]:
    if paths:
        return [list(read_trace(path)) for path in paths]
    from healthy.generator import hour

    return [hour(seed) for seed in range(healthy)]


def feed_all(traces: list[list[AnyEvent]], detectors: Any = None) -> int:
    """Feed every trace to an engine of its own; returns the number of findings."""
    found = 0
    for trace in traces:
        engine = Engine() if detectors is None else Engine(detectors=detectors)
        feed = engine.feed
        for event in trace:
            feed(event)
        found += len(engine.findings)
    return found


def seconds(traces: list[list[AnyEvent]], repeat: int, detectors: Any = None) -> float:
    best = float("inf")
    for _ in range(repeat):
        gc.collect()
        begin = time.process_time()
        feed_all(traces, detectors)
        best = min(best, time.process_time() - begin)
    return best


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", metavar="TRACE")
    parser.add_argument("--healthy", type=int, default=12, metavar="N", help="generated hours where no trace is given")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--profile", action="store_true", help="also show where the time goes")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    traces = runs(options.traces, options.healthy)
    events = sum(map(len, traces))
    whole, bare = seconds(traces, options.repeat), seconds(traces, options.repeat, ())
    figures = {
        "events": events,
        "events_per_s": round(events / whole),
        "microseconds_per_event": round(1e6 * whole / events, 3),
        "detectors_share": round(1.0 - bare / whole, 3),
    }
    if options.json:
        print(json.dumps(figures))
    else:
        print(
            f"{figures['events']:,} events, {figures['events_per_s']:,} a second "
            f"({figures['microseconds_per_event']} us each, {figures['detectors_share']:.0%} of it detectors)"
        )
    if options.profile:
        profile = cProfile.Profile()
        profile.enable()
        feed_all(traces)
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)
    return 0


if __name__ == "__main__":
    sys.exit(main())
