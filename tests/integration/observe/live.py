"""The made-up fleet, live: each rank behind a real exporter, a real Prometheus with the rules, Alertmanager, a webhook."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from integration.observe.servers import Api, alertmanager, prometheus
from integration.observe.world import RunStory, fleet
from trainbudget.findings import Route
from trainbudget.render import rules
from trainbudget.render.yaml_text import to_yaml
from trainbudget.sinks.prometheus import PrometheusSink
from unit.sinks.receiver import Receiver, receiving

#: What each run has behind it when the first scrape comes.
HISTORY_S = 1800.0
#: A rank that has been silent this long is gone: five minutes would be too long for a test.
FRESH_S = 6


@dataclass
class Exporter:
    """One rank: its story, and its exporter while it lives."""

    story: RunStory
    sink: PrometheusSink
    began: float = field(default_factory=time.monotonic)
    gone: bool = False

    @property
    def label(self) -> str:
        return f"{self.story.name}-{self.story.ident}"

    def tick(self) -> None:
        now_s = min(self.story.age_s, self.story.dies_at_s - 1.0) + time.monotonic() - self.began
        self.story.advance(now_s)
        self.sink.write(self.story.engine.report(), (), ())

    def die(self) -> None:
        self.gone = True
        self.sink.close()


@dataclass
class World:
    exporters: list[Exporter]
    api: Api
    hook: Receiver
    folder: Path

    def alerts(self) -> list[dict[str, Any]]:
        """Alerts the webhook has been sent, oldest first."""
        with self.hook.arrived:
            calls = list(self.hook.calls)
        return [alert for call in calls for alert in json.loads(call.body)["alerts"]]

    def wait_for(self, condition: Callable[[], Any], what: str, timeout_s: float = 90.0) -> Any:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            found = condition()
            if found:
                return found
            time.sleep(0.5)
        raise AssertionError(f"{what}: not within {timeout_s:.0f} s")


def quick_rules(folder: Path) -> list[str]:
    """The committed rules, evaluated every second and without holds; the threshold file is edited as a user would."""
    thresholds = re.sub(r"(name: fresh_seconds\}\n\s+expr: )vector\(300\)", rf"\1vector({FRESH_S})", rules.thresholds_yaml())
    assert f"vector({FRESH_S})" in thresholds
    texts = {"thresholds": thresholds, "recording": rules.recording_yaml(), "alerts": rules.alerts_yaml()}
    names = []
    for name, text in texts.items():
        quick = text.replace('interval: "30s"', 'interval: "1s"').replace("interval: 30s", "interval: 1s")
        quick = re.sub(r'for: "[0-9]+[smh]"', 'for: "1s"', quick)
        (folder / f"{name}.yaml").write_text(quick, encoding="utf-8")
        names.append(f"{name}.yaml")
    return names


def prometheus_config(rule_files: list[str], targets: list[str], alertmanager_url: str, extra: list[dict[str, Any]]) -> str:
    return to_yaml(
        {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": rule_files,
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager_url.removeprefix("http://")]}]}]},
            "scrape_configs": [{"job_name": "training", "static_configs": [{"targets": targets}]}, *extra],
        }
    )


def alertmanager_config(hook_url: str) -> str:
    hook = {"webhook_configs": [{"url": hook_url, "send_resolved": True}]}
    text = to_yaml(rules.alertmanager_config(dict.fromkeys(Route, hook)))
    return re.sub(r'group_wait: "?[0-9]+[smh]"?', "group_wait: 1s\n      group_interval: 1s", text)


@contextlib.contextmanager
def world(folder: Path) -> Iterator[World]:
    exporters = [Exporter(story, PrometheusSink("127.0.0.1:0")) for story in fleet(HISTORY_S)]
    stop = threading.Event()

    def live() -> None:
        while not stop.wait(1.0):
            for exporter in exporters:
                if not exporter.gone:
                    exporter.tick()

    for exporter in exporters:
        exporter.tick()
        exporter.began = time.monotonic()
    feeder = threading.Thread(target=live, daemon=True)
    targets = [f"127.0.0.1:{exporter.sink.port}" for exporter in exporters]
    with contextlib.ExitStack() as stack:
        hook = stack.enter_context(receiving())
        manager = stack.enter_context(alertmanager(folder, alertmanager_config(hook.url)))
        url = stack.enter_context(prometheus(folder, prometheus_config(quick_rules(folder), targets, manager, [])))
        feeder.start()
        try:
            yield World(exporters, Api(url), hook, folder)
        finally:
            stop.set()
            feeder.join(10)
            for exporter in exporters:
                exporter.sink.close()
