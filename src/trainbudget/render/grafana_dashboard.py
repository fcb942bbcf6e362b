"""Panels to a whole dashboard: layout, ids, variables, annotations, links."""

from __future__ import annotations

from collections.abc import Sequence

from trainbudget.catalog import MetricSpec
from trainbudget.catalog.recording import FINDING
from trainbudget.render.grafana_fields import Json
from trainbudget.render.grafana_panel import COLUMNS, DATASOURCE, SCHEMA_VERSION

FLEET, RUN, GPU, MONITOR = "trainbudget-fleet", "trainbudget-run", "trainbudget-gpu", "trainbudget-monitor"
TITLES = {FLEET: "Fleet", RUN: "Run", GPU: "GPU", MONITOR: "Monitor"}
TAG = "trainbudget"


def dashboard(
    uid: str, description: str, panels: Sequence[Json], variables: Sequence[Json], *, since: str, refresh: str = "30s"
) -> Json:
    """The dashboard as Grafana imports it. Findings are marked on every panel of a dashboard about one run."""
    return {
        "uid": uid,
        "title": f"Training budget / {TITLES[uid]}",
        "description": description,
        "tags": [TAG],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "browser",
        "refresh": refresh,
        "time": {"from": since, "to": "now"},
        "timepicker": {},
        "fiscalYearStartMonth": 0,
        "liveNow": False,
        "weekStart": "",
        "links": [_link(other) for other in TITLES if other != uid],
        "annotations": {"list": [_findings()] if uid in (RUN, GPU) else []},
        "templating": {"list": [_datasource(), *variables]},
        "panels": _laid_out(panels),
    }


def info_variable(
    name: str, label: str, info: MetricSpec, value: str, *, many: bool = False, hidden: bool = False, **match: str
) -> Json:
    """A variable of the values of a label of an info series: those are always there while a run is."""
    query = f"label_values({info.at(**match)}, {value})"
    out: Json = {
        "type": "query",
        "name": name,
        "label": label,
        "hide": 2 if hidden else 0,
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": "variable", "qryType": 1},
        "refresh": 2,
        "regex": "",
        "sort": 1,
        "multi": many,
        "includeAll": many,
        "current": {"text": ["All"], "value": ["$__all"]} if many else {},
        "options": [],
        "skipUrlSync": False,
    }
    if many:
        out["allValue"] = ".+"
    return out


def _datasource() -> Json:
    return {
        "type": "datasource",
        "name": "datasource",
        "label": "Data source",
        "query": "prometheus",
        "hide": 0,
        "refresh": 1,
        "regex": "",
        "multi": False,
        "includeAll": False,
        "current": {},
        "options": [],
        "skipUrlSync": False,
    }


def _findings() -> Json:
    expr = FINDING.at(run="=~$run", severity="!=info")
    return {
        "name": "Findings",
        "datasource": DATASOURCE,
        "enable": True,
        "hide": False,
        "iconColor": "orange",
        "expr": expr,
        "step": "60s",
        "titleFormat": "{{code}}",
        "textFormat": "{{severity}}",
        "tagKeys": "severity",
    }


def _link(uid: str) -> Json:
    return {
        "type": "link",
        "title": TITLES[uid],
        "url": f"/d/{uid}",
        "icon": "dashboard",
        "tooltip": "",
        "tags": [],
        "asDropdown": False,
        "targetBlank": False,
        "includeVars": True,
        "keepTime": True,
    }


def _laid_out(panels: Sequence[Json]) -> list[Json]:
    """Left to right, a new line when the 24 columns are full; a folded row keeps its panels inside."""
    ids = iter(range(1, 1000))
    out, _ = _placed(panels, 0, ids)
    return out


def _placed(panels: Sequence[Json], top: int, ids: object) -> tuple[list[Json], int]:
    out: list[Json] = []
    left, height = 0, 0
    for panel in panels:
        size = panel["gridPos"]
        if left + size["w"] > COLUMNS:
            top, left, height = top + height, 0, 0
        placed = {"id": next(ids), **panel, "gridPos": {**size, "x": left, "y": top}}  # type: ignore[call-overload]
        left, height = left + size["w"], max(height, size["h"])
        if panel["type"] == "row":
            top, left, height = top + 1, 0, 0
            placed["panels"], _ = _placed(panel["panels"], top, ids)
        out.append(placed)
    return out, top + height
