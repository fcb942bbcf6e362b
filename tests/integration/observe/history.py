"""Hours of a made-up fleet as blocks of a real Prometheus, recording rules included: pictures need no hours of waiting."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from integration.observe.servers import prometheus
from integration.observe.world import RunStory, fleet
from trainbudget.catalog import Snapshot
from trainbudget.catalog.recording import RECORDING
from trainbudget.render import rules
from trainbudget.render.yaml_text import to_yaml
from trainbudget.sinks.exposition import body_of, tail_of

SCRAPE_S = 15
CONFIG = "global: {scrape_interval: 15s}\n"


def lines(story: RunStory, start_s: float, end_s: float) -> Iterator[str]:
    """A run's scrapes as samples with times, as its exporter would have answered every `SCRAPE_S`."""
    began_s = end_s - story.age_s
    labels = f'job="training",instance="{story.instance}",'
    t_s = began_s + SCRAPE_S - began_s % SCRAPE_S
    while t_s <= end_s:
        if t_s - began_s > story.dies_at_s:
            yield f"up{{{labels[:-1]}}} 0 {t_s:.0f}\n"
        elif t_s >= start_s:
            story.advance(t_s - began_s)
            report = story.engine.report()
            body, dropped = body_of(report, zero_unix_s=began_s, now_unix_s=t_s)
            tail = tail_of(Snapshot(report=report, zero_unix_s=began_s, now_unix_s=t_s, scrape_s=t_s * 1e-6, dropped=dropped))
            for line in (body + tail).splitlines():
                if not line.startswith("#"):
                    yield line.replace("{", "{" + labels, 1) + f" {t_s:.0f}\n"
            yield f"up{{{labels[:-1]}}} 1 {t_s:.0f}\n"
        t_s += SCRAPE_S


def build(folder: Path, end_s: float, hours: float = 3.0) -> None:
    """Fill `folder/data` with `hours` of history until `end_s`."""
    start_s = end_s - hours * 3600.0
    prometheus_blocks(folder, (line for story in fleet(hours * 3600.0) for line in lines(story, start_s, end_s)))
    for number, level in enumerate(_levels()):
        path = folder / f"level-{number}.yaml"
        path.write_text(to_yaml({"groups": [{"name": f"level-{number}", "rules": level}]}), encoding="utf-8")
        with prometheus(folder, CONFIG) as url:
            _promtool(
                folder,
                "create-blocks-from",
                "rules",
                f"--start={start_s:.0f}",
                f"--end={end_s:.0f}",
                f"--url={url}",
                f"--eval-interval={SCRAPE_S}s",
                f"--output-dir={folder / 'data'}",
                str(path),
            )


def prometheus_blocks(folder: Path, samples: Iterable[str]) -> None:
    """Lines `name{labels} value time` as blocks in `folder/data`."""
    path = folder / "history.om"
    with path.open("w", encoding="utf-8") as out:
        out.writelines(samples)
        out.write("# EOF\n")
    _promtool(folder, "create-blocks-from", "openmetrics", "--quiet", str(path), str(folder / "data"))
    path.unlink()


def _levels() -> list[list[dict[str, Any]]]:
    """The recording rules in the order of their dependencies: each level needs only those before it."""
    depth: dict[str, int] = {}
    levels: list[list[dict[str, Any]]] = [rules.threshold_group()["rules"]]
    for record, rule in zip(RECORDING, rules.recording_group()["rules"], strict=True):
        level = 1 + max((d for name, d in depth.items() if name in record.expr), default=0)
        depth[record.name] = level
        while len(levels) <= level:
            levels.append([])
        levels[level].append(rule)
    return levels


def _promtool(folder: Path, *arguments: str) -> None:
    done = subprocess.run(["promtool", "tsdb", *arguments], capture_output=True, text=True, cwd=folder, timeout=300, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])


def prometheus_over(folder: Path) -> contextlib.AbstractContextManager[str]:
    """A Prometheus over what `build` has left in `folder`: its URL."""
    return prometheus(folder, CONFIG)
