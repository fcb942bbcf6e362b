"""Dashboards: complete panels, honest variables, every metric shown or listed, nothing Grafana's model would lose."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from trainbudget.catalog import METRICS, Unit
from trainbudget.catalog.recording import RECORDING
from trainbudget.engine.ledger import BUCKETS
from trainbudget.render.grafana import dashboards
from trainbudget.render.grafana_look import BUCKET_COLOURS

BOARDS = dashboards()
#: Metrics on no dashboard, with the reason.
NOT_SHOWN = {
    "trainbudget_gpu_memory_total_bytes": "the limit is what counts; the total is for other people's dashboards",
    "trainbudget_gpu_memory_reserved_bytes": "explains differences between tools, not needed at a glance",
    "trainbudget_memory_peak_bytes": "limit minus head-room",
    "trainbudget_gpu_lost": "an alert and a finding; a lost device has no curve",
    "trainbudget_gpu_processes": "memory by whose process says more",
    "trainbudget_allocator_ooms_total": "each is a finding",
    "trainbudget_budget_run_seconds": "in the alert's words; the end is shown as a time",
    "trainbudget_projected_run_seconds": "in the alert's words; the end is shown as a time",
    "trainbudget_budget_steps": "used to tell a finished run from a vanished one",
    "trainbudget_last_step": "used to tell a finished run from a vanished one",
    "trainbudget_up": "the state says more",
}
#: Properties of Prometheus's own annotation editor, which the generic model does not know.
PLUGIN_KEYS = re.compile(r"^/annotations/list\[\d+\]/(step|titleFormat|textFormat|tagKeys)$")


def panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for panel in board["panels"]:
        if panel["type"] == "row":
            yield from panels(panel)
        else:
            yield panel


PANELS = [pytest.param(p, id=f"{name}-{p['title']}") for name, board in BOARDS.items() for p in panels(board)]


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_explains_itself(panel: dict[str, Any]) -> None:
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert panel["targets"]
    assert panel["datasource"]["uid"] == "${datasource}"
    if panel["type"] == "timeseries":
        assert panel["options"]["legend"]["showLegend"]
        assert all(target["legendFormat"] != "__auto" for target in panel["targets"])
    assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


@pytest.mark.parametrize("name", sorted(BOARDS))
def test_panels_fill_their_rows_and_never_overlap(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARDS[name]["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
    ids = [p["id"] for p in BOARDS[name]["panels"]] + [q["id"] for p in BOARDS[name]["panels"] for q in p.get("panels", [])]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("name", sorted(BOARDS))
def test_variables_come_from_info_series_which_are_always_there(name: str) -> None:
    for variable in BOARDS[name]["templating"]["list"]:
        if variable["type"] == "query":
            assert re.match(r"label_values\(trainbudget_(run|gpu)_info", variable["query"]["query"])


@pytest.mark.parametrize("name", sorted(BOARDS))
def test_no_literal_job_instance_or_data_source(name: str) -> None:
    text = json.dumps([p["targets"] for p in panels(BOARDS[name])])
    assert not re.search(r"\b(job|instance|pod|namespace)\s*=", text)


@pytest.mark.parametrize("name", sorted(BOARDS))
def test_every_variable_in_a_query_is_declared(name: str) -> None:
    declared = {v["name"] for v in BOARDS[name]["templating"]["list"]}
    used = {v for p in panels(BOARDS[name]) for t in p["targets"] for v in re.findall(r"\$\{?(\w+)", t["expr"])}
    assert used <= declared


def test_panels_of_money_are_about_one_currency() -> None:
    """Two currencies are never stacked or added: each such query picks one, or keeps the label."""
    money = [m.name for m in (*METRICS, *RECORDING) if m.unit is Unit.MONEY]
    for board in BOARDS.values():
        for panel in panels(board):
            for target in panel["targets"]:
                for name in money:
                    for selector in re.findall(rf"\b{re.escape(name)}(?:\{{([^}}]*)\}})?", target["expr"]):
                        assert 'currency="$currency"' in selector, (panel["title"], target["expr"])


def test_every_metric_is_on_a_dashboard_or_in_a_rule_or_listed_with_a_reason() -> None:
    queries = " ".join(t["expr"] for board in BOARDS.values() for p in panels(board) for t in p["targets"])
    variables = json.dumps([board["templating"] for board in BOARDS.values()])
    recorded = " ".join(r.expr for r in RECORDING if r.name in queries)
    shown = {m.name for m in METRICS if re.search(rf"\b{m.name}\b|\b{m.name}_bucket\b", queries + variables + recorded)}
    missing = {m.name for m in METRICS} - shown
    assert missing <= set(NOT_SHOWN), missing - set(NOT_SHOWN)
    assert set(NOT_SHOWN) <= {m.name for m in METRICS}


def test_every_bucket_has_its_colour() -> None:
    assert set(BUCKET_COLOURS) == set(BUCKETS)
    assert len(set(BUCKET_COLOURS.values())) == len(BUCKET_COLOURS)


@pytest.mark.parametrize("name", sorted(BOARDS))
def test_nothing_is_lost_on_the_way_through_grafanas_typed_model(name: str) -> None:
    pytest.importorskip("grafana_foundation_sdk", reason="grafana-foundation-sdk (11.x epoch) is not installed")
    lost = [key for key in lost_keys(BOARDS[name]) if not PLUGIN_KEYS.match(key)]
    assert lost == []


def test_a_misspelled_key_is_lost_on_that_way() -> None:
    """Guards the test above."""
    pytest.importorskip("grafana_foundation_sdk", reason="grafana-foundation-sdk (11.x epoch) is not installed")
    board = json.loads(json.dumps(BOARDS["fleet"]))
    board["panels"][0]["titel"] = "x"
    board["panels"][0]["fieldConfig"]["defaults"]["unitt"] = "s"
    board["panels"][0]["targets"][0]["exprr"] = "x"
    assert {key.rpartition("/")[2] for key in lost_keys(board)} >= {"titel", "unitt", "exprr"}


def lost_keys(board: dict[str, Any]) -> list[str]:
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    back = json.loads(JSONEncoder().encode(Dashboard.from_json(board)))
    return list(_lost(board, back, ""))


def _lost(before: Any, after: Any, path: str) -> Iterator[str]:
    if isinstance(before, dict):
        for key, value in before.items():
            if not isinstance(after, dict) or key not in after:
                yield f"{path}/{key}"
            else:
                yield from _lost(value, after[key], f"{path}/{key}")
    elif isinstance(before, list):
        if not isinstance(after, list) or len(before) != len(after):
            yield path
        else:
            for place, (left, right) in enumerate(zip(before, after, strict=True)):
                yield from _lost(left, right, f"{path}[{place}]")
    elif before != after:
        yield f"{path}: {before!r} became {after!r}"
