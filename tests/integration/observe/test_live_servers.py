"""The whole way with real servers: exporter -> Prometheus -> rules -> dashboards' queries, Alertmanager -> webhook."""

from __future__ import annotations

import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from integration.observe.live import World, world
from integration.observe.servers import needs
from trainbudget.catalog.alerts import ALERTS
from trainbudget.catalog.recording import RECORDING
from trainbudget.catalog.thresholds import THRESHOLD_RECORD, THRESHOLDS
from trainbudget.render.grafana import dashboards

pytestmark = [pytest.mark.servers, pytest.mark.slow, needs("prometheus", "promtool", "prometheus-alertmanager", "amtool")]

#: What each variable is set to; `.+` is All.
VARIABLES = {"run": "gemma-sft-91be", "rank": ".+", "gpu": ".+", "currency": "USD", "datasource": "x"}
MANY = {"fleet", "monitor"}
#: Queries that rightly have no data here: panel and letter -> reason.
EXPECTED_EMPTY = {("Throughput, a second", "B"): "samples stand in where no tokens are counted, and here they are"}
_FOLDED_OF = "row"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("observe")) as found:
        found.wait_for(lambda: found.api.now("trainbudget:wasted_per_hour > 0"), "recorded waste")
        found.wait_for(lambda: found.api.now("count(count_over_time(trainbudget_up[1m]) > 25)"), "half a minute of scrapes")
        yield found


def panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for panel in board["panels"]:
        if panel["type"] == _FOLDED_OF:
            yield from panels({"panels": panel["panels"]})
        else:
            yield panel


def filled(text: str, board: str) -> str:
    values = {**VARIABLES, **({"run": ".+"} if board in MANY else {})}
    return re.sub(r"\$\{?(\w+)\}?", lambda match: values[match[1]], text)


TARGETS = [
    pytest.param(name, panel["title"], target, id=f"{name}-{panel['title']}-{target['refId']}")
    for name, board in dashboards().items()
    for panel in panels(board)
    for target in panel["targets"]
]


@pytest.mark.parametrize(("board", "title", "target"), TARGETS)
def test_every_panel_query_returns_data_with_the_labels_of_its_legend(
    live: World, board: str, title: str, target: dict[str, Any]
) -> None:
    expression = filled(target["expr"], board)
    now_s = time.time()
    found = live.api.now(expression) if target["instant"] else live.api.over(expression, now_s - 60, now_s, 1)
    if (title, target["refId"]) in EXPECTED_EMPTY:
        assert not found, f"{title} has data: take it off the list"
        return
    assert found, expression
    for label in re.findall(r"\{\{\s*(\w+)\s*\}\}", target["legendFormat"]):
        assert all(label in series["metric"] for series in found), (label, expression)
    values = [v for series in found for _, v in (series.get("values") or [series["value"]])]
    assert any(value not in ("NaN", "+Inf", "-Inf") for value in values), expression


@pytest.mark.parametrize("board", sorted(dashboards()))
def test_every_variable_has_values_and_every_annotation_has_spans(live: World, board: str) -> None:
    document = dashboards()[board]
    now_s = time.time()
    for variable in document["templating"]["list"]:
        if variable["type"] != "query":
            continue
        match = re.fullmatch(r"label_values\((.+), (\w+)\)", filled(variable["query"]["query"], board))
        assert match is not None, variable["query"]
        assert live.api.label_values(match[1], match[2], now_s - 60, now_s), variable["name"]
    for annotation in document["annotations"]["list"]:
        assert live.api.over(filled(annotation["expr"], board), now_s - 60, now_s, 1)


@pytest.mark.parametrize("record", RECORDING, ids=lambda record: record.stem)
def test_every_recording_rule_records_something_with_its_labels(live: World, record: Any) -> None:
    if record.stem == "vanished":
        return  # its own test below
    found = live.api.now(record.name)
    assert found, record.expr
    assert {tuple(sorted(set(s["metric"]) - {"__name__"})) for s in found} == {tuple(sorted(record.labels))}


def test_every_rule_is_healthy_and_every_alert_expression_is_understood(live: World) -> None:
    groups = live.api.get("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) == len(RECORDING) + len(ALERTS) + len(THRESHOLDS)
    assert [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"] == []
    for alert in ALERTS:
        live.api.now(alert.expr)
    assert len(live.api.now(THRESHOLD_RECORD)) == len(THRESHOLDS)


def test_alerts_of_memory_and_of_waste_reach_the_webhook_with_their_words_and_routes(live: World) -> None:
    def told(name: str, run: str) -> Any:
        return next((a for a in live.alerts() if a["labels"]["alertname"] == name and a["labels"]["run"] == run), None)

    soon = live.wait_for(lambda: told("TrainbudgetOutOfMemorySoon", "gemma-sft-91be"), "the OOM alert")
    assert soon["labels"]["route"] == "page"
    assert re.fullmatch(
        r"gemma-sft-91be: GPU \d of rank 0 is out of memory in about (\d+m )?[\d.]+s\.", soon["annotations"]["summary"]
    )
    assert re.search(r"[\d.]+ USD has been spent so far", soon["annotations"]["description"])
    waste = live.wait_for(lambda: told("TrainbudgetWaste", "vit-imagenet-c41d"), "the waste alert")
    assert waste["labels"]["route"] == "ticket"
    assert re.fullmatch(
        r"vit-imagenet-c41d wastes \d+\.\d\d USD an hour \([\d.]+% of what it costs\), most of it in data_wait\.",
        waste["annotations"]["summary"],
    )
    hang = live.wait_for(lambda: told("TrainbudgetHang", "bert-mlm-02aa"), "the hang")
    assert "no step for" in hang["annotations"]["summary"]


def test_a_run_that_dies_is_told_as_vanished_and_one_that_ended_is_not(live: World) -> None:
    dying = next(e for e in live.exporters if e.story.name == "mistral-dpo")
    ended = next(e for e in live.exporters if e.story.name == "t5-small")
    dying.die()
    ended.die()

    def vanished() -> Any:
        return [a for a in live.alerts() if a["labels"]["alertname"] == "TrainbudgetRunVanished"]

    found = live.wait_for(vanished, "the run that vanished")
    assert {alert["labels"]["run"] for alert in found} == {dying.label}
    assert re.search(r"It had spent [\d.]+ USD\.", found[0]["annotations"]["description"])
    time.sleep(8)  # longer than the other run's last report stays news
    assert {alert["labels"]["run"] for alert in vanished()} == {dying.label}
    states = {s["metric"]["run"]: s["value"][1] for s in live.api.now("trainbudget:state")}
    assert (states[dying.label], states[ended.label]) == ("0", "8")


def test_promtool_and_amtool_find_nothing_wrong(live: World) -> None:
    exporter = next(e for e in live.exporters if not e.gone)
    with urllib.request.urlopen(f"{exporter.sink.url}/metrics", timeout=5) as answer:
        text = answer.read()
    for command, stdin in (
        (["promtool", "check", "metrics"], text),
        (["promtool", "check", "config", str(live.folder / "prometheus.yml")], None),
        (["amtool", "check-config", str(live.folder / "alertmanager.yml")], None),
    ):
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=False)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        assert b"error" not in done.stdout.lower()


def test_scrapes_are_cheap_and_regular(live: World) -> None:
    scrapes = live.api.now('min(count_over_time(up{job="training"}[20s]))')
    assert float(scrapes[0]["value"][1]) >= 15  # of 20: this machine is shared
    series = live.api.now("max(scrape_samples_scraped)")
    assert float(series[0]["value"][1]) <= 80 + 40 * 2
