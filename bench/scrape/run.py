"""What a scrape costs the training process, and what the rules cost the server.

    python bench/scrape/run.py [--only scrape|gil|rules]

Goals: with 8 GPUs a scrape takes <= 1 ms of our own time and is answered within 100 ms while another thread of the process
holds the interpreter; the rule groups are evaluated for 1,000 ranks within 1 s. Exit 1 when one is missed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from integration.observe.history import prometheus_blocks  # noqa: E402
from integration.observe.servers import Api, prometheus  # noqa: E402
from integration.observe.world import RunStory  # noqa: E402
from trainbudget.render import rules  # noqa: E402
from trainbudget.sinks.exposition import body_of  # noqa: E402
from trainbudget.sinks.prometheus import PrometheusSink  # noqa: E402
from unit.sinks.report_samples import report  # noqa: E402

RANKS = 1000
GOALS = {"scrape_ms": 1.0, "gil_scrape_ms": 100.0, "rules_s": 1.0}

#: A process whose main thread never gives the interpreter back by itself: pure Python, as tokenisation or a loop over tensors.
_BUSY = """
import sys
from unit.sinks.report_samples import report
from trainbudget.sinks.prometheus import PrometheusSink
sink = PrometheusSink("127.0.0.1:0")
sink.write(report(gpus=8), (), ())
print(sink.url, flush=True)
while True:
    sum(range(1000))
"""


def scrape() -> dict[str, float]:
    """Medians: making the body once a report, and answering one scrape from it."""
    sink = PrometheusSink("off")
    full = report(gpus=8)

    def render() -> None:
        sink.write(full, (), ())

    render()
    return {"render_ms": _median_ms(render, 200), "scrape_ms": _median_ms(sink.body, 500), "body_bytes": float(len(sink.body()))}


def gil() -> dict[str, float]:
    """One client in this process against an exporter in a process that is busy; connection reused, as Prometheus does."""
    import http.client

    environment = {"PYTHONPATH": f"{ROOT / 'tests'}:{ROOT / 'src'}", "PATH": "/usr/bin:/bin"}
    busy = subprocess.Popen([sys.executable, "-c", _BUSY], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert busy.stdout is not None
        host = busy.stdout.readline().strip().removeprefix("http://")
        times = []
        connection = http.client.HTTPConnection(host, timeout=10)
        for _ in range(50):
            started = time.perf_counter()
            connection.request("GET", "/metrics")
            connection.getresponse().read()
            times.append((time.perf_counter() - started) * 1e3)
            time.sleep(0.05)
        fresh = []
        for _ in range(20):
            started = time.perf_counter()
            one = http.client.HTTPConnection(host, timeout=10)
            one.request("GET", "/metrics")
            one.getresponse().read()
            one.close()
            fresh.append((time.perf_counter() - started) * 1e3)
    finally:
        busy.kill()
        busy.wait()
    return {
        "gil_scrape_ms": statistics.median(times),
        "gil_worst_ms": max(times),
        "gil_new_connection_ms": statistics.median(fresh),
    }


def rule_groups() -> dict[str, float]:
    """Evaluation time of the three groups as Prometheus reports it, over series of a thousand ranks."""
    with tempfile.TemporaryDirectory(prefix="trainbudget-bench-") as name:
        folder = Path(name)
        end_s = time.time()
        prometheus_blocks(folder, _thousand_ranks(end_s))
        texts = {"thresholds": rules.thresholds_yaml(), "recording": rules.recording_yaml(), "alerts": rules.alerts_yaml()}
        for stem, text in texts.items():
            quick = text.replace('interval: "30s"', 'interval: "4s"').replace("interval: 30s", "interval: 4s")
            (folder / f"{stem}.yaml").write_text(quick, encoding="utf-8")
        config = "global: {scrape_interval: 15s}\nrule_files: [thresholds.yaml, recording.yaml, alerts.yaml]\n"
        with prometheus(folder, config) as url:
            api = Api(url)
            seen: dict[str, list[float]] = {}
            for _ in range(6):
                time.sleep(4.0)
                for group in api.get("rules")["groups"]:
                    seen.setdefault(group["name"], []).append(float(group["evaluationTime"]))
            ranks = float(api.now("count(trainbudget:fresh)")[0]["value"][1])
            series = float(api.now('count({__name__=~"trainbudget_.+"})')[0]["value"][1])
    medians = {f"rules_{group.removeprefix('trainbudget-')}_s": statistics.median(times) for group, times in seen.items()}
    return {"ranks": ranks, "series": series, **medians, "rules_s": max(medians.values())}


def _thousand_ranks(end_s: float) -> list[str]:
    story = RunStory(name="big", ident="1k", world_size=RANKS, budget_cost=9000.0, age_s=1800.0)
    began_s = end_s - story.age_s
    out = []
    for back_s in range(660, -1, -60):
        story.advance(story.age_s - back_s)
        at_s = end_s - back_s
        body, _ = body_of(story.engine.report(), zero_unix_s=began_s, now_unix_s=at_s)
        template = [line for line in body.splitlines() if not line.startswith("#")]
        for rank in range(RANKS):
            out += [line.replace('rank="0"', f'rank="{rank}"', 1) + f" {at_s:.0f}\n" for line in template]
    return out


def _median_ms(call: object, count: int) -> float:
    times = []
    for _ in range(count):
        started = time.perf_counter()
        call()  # type: ignore[operator]
        times.append((time.perf_counter() - started) * 1e3)
    return statistics.median(times)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("scrape", "gil", "rules"))
    only = parser.parse_args().only
    found: dict[str, float] = {}
    for name, measure in (("scrape", scrape), ("gil", gil), ("rules", rule_groups)):
        if only in (None, name):
            found |= measure()
    print(json.dumps({key: round(value, 4) for key, value in found.items()}, indent=1))
    missed = [f"{key} = {found[key]:.3g}, goal {goal:g}" for key, goal in GOALS.items() if key in found and found[key] > goal]
    for line in missed:
        print("MISSED", line, file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
