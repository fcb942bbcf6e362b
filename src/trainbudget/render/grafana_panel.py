"""Grafana's dashboard model (schema 39, Grafana 11) as small typed functions: queries, panels, variables, dashboards."""

from __future__ import annotations

from collections.abc import Sequence

from trainbudget.catalog.spec import Unit
from trainbudget.render.grafana_fields import Json, Override, Query, Steps

SCHEMA_VERSION = 39
DATASOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
#: Grafana lays panels out on 24 columns.
COLUMNS = 24


def _targets(queries: Sequence[Query]) -> list[Json]:
    return [
        {
            "datasource": DATASOURCE,
            "editorMode": "code",
            "expr": q.expr,
            "format": "table" if q.table else "time_series",
            "instant": q.now,
            "range": not q.now,
            "legendFormat": q.legend or "__auto",
            "refId": chr(ord("A") + place),
        }
        for place, q in enumerate(queries)
    ]


def _panel(
    kind: str,
    title: str,
    description: str,
    queries: Sequence[Query],
    *,
    size: tuple[int, int],
    defaults: Json,
    options: Json,
    overrides: Sequence[Override] = (),
    transformations: Sequence[Json] = (),
) -> Json:
    out: Json = {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": DATASOURCE,
        "gridPos": {"w": size[0], "h": size[1], "x": 0, "y": 0},
        "targets": _targets(queries),
        "fieldConfig": {"defaults": defaults, "overrides": [o.json() for o in overrides]},
        "options": options,
    }
    if transformations:
        out["transformations"] = list(transformations)
    return out


def _defaults(
    unit: Unit | str,
    *,
    steps: Steps | None = None,
    decimals: int | None = None,
    low: float | None = None,
    high: float | None = None,
    empty: str | None = None,
    texts: list[Json] | None = None,
    by_thresholds: bool = False,
    custom: Json | None = None,
) -> Json:
    out: Json = {
        "unit": unit.grafana if isinstance(unit, Unit) else unit,
        "color": {"mode": "thresholds" if by_thresholds else "palette-classic"},
        "thresholds": (steps or Steps(base="text")).json(),
        "mappings": texts or [],
    }
    for key, value in (("decimals", decimals), ("min", low), ("max", high), ("noValue", empty), ("custom", custom)):
        if value is not None:
            out[key] = value
    return out


def stat(
    title: str,
    description: str,
    queries: Sequence[Query],
    *,
    unit: Unit | str,
    size: tuple[int, int] = (4, 4),
    steps: Steps | None = None,
    decimals: int | None = None,
    empty: str = "not known",
    texts: list[Json] | None = None,
    names: bool = False,
    graph: bool = True,
    overrides: Sequence[Override] = (),
) -> Json:
    """Large numbers; `names` shows the series' names beside them."""
    return _panel(
        "stat",
        title,
        description,
        queries,
        size=size,
        defaults=_defaults(unit, steps=steps, decimals=decimals, empty=empty, texts=texts, by_thresholds=True),
        options={
            "colorMode": "value",
            "graphMode": "area" if graph else "none",
            "justifyMode": "auto",
            "orientation": "auto",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "textMode": "value_and_name" if names else "value",
            "wideLayout": True,
            "showPercentChange": False,
        },
        overrides=overrides,
    )


def timeseries(
    title: str,
    description: str,
    queries: Sequence[Query],
    *,
    unit: Unit | str,
    size: tuple[int, int] = (12, 9),
    stacked: bool = False,
    steps: Steps | None = None,
    decimals: int | None = None,
    low: float | None = 0.0,
    high: float | None = None,
    axis: str = "",
    table: bool = False,
    empty: str | None = None,
    overrides: Sequence[Override] = (),
) -> Json:
    """Lines over time, or stacked areas; `table` puts the legend beside it with the newest value."""
    custom: Json = {
        "drawStyle": "line",
        "lineWidth": 1 if stacked else 2,
        "fillOpacity": 70 if stacked else 8,
        "gradientMode": "none",
        "lineInterpolation": "linear",
        "showPoints": "never",
        "spanNulls": 120000,
        "axisPlacement": "auto",
        "axisLabel": axis,
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
        "thresholdsStyle": {"mode": "dashed" if steps is not None else "off"},
    }
    return _panel(
        "timeseries",
        title,
        description,
        queries,
        size=size,
        defaults=_defaults(unit, steps=steps, decimals=decimals, low=low, high=high, empty=empty, custom=custom),
        options={
            "legend": {
                "displayMode": "table" if table else "list",
                "placement": "right" if table else "bottom",
                "showLegend": True,
                "calcs": ["lastNotNull"] if table else [],
            },
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        overrides=overrides,
    )


def state_timeline(
    title: str,
    description: str,
    queries: Sequence[Query],
    *,
    texts: list[Json],
    size: tuple[int, int] = (24, 7),
    empty: str = "nothing",
) -> Json:
    """One line a series, coloured by state."""
    custom: Json = {"fillOpacity": 80, "lineWidth": 0}
    return _panel(
        "state-timeline",
        title,
        description,
        queries,
        size=size,
        defaults=_defaults(Unit.STATE, texts=texts, empty=empty, by_thresholds=True, custom=custom),
        options={
            "showValue": "auto",
            "rowHeight": 0.85,
            "mergeValues": True,
            "alignValue": "left",
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "single", "sort": "none"},
        },
    )


def bars(
    title: str,
    description: str,
    queries: Sequence[Query],
    *,
    unit: Unit | str,
    size: tuple[int, int] = (8, 8),
    steps: Steps | None = None,
    decimals: int | None = None,
    high: float | None = None,
    empty: str = "nothing",
    overrides: Sequence[Override] = (),
) -> Json:
    """The newest value of each series as a bar."""
    return _panel(
        "bargauge",
        title,
        description,
        queries,
        size=size,
        defaults=_defaults(unit, steps=steps, decimals=decimals, low=0.0, high=high, empty=empty, by_thresholds=True),
        options={
            "displayMode": "gradient",
            "orientation": "horizontal",
            "valueMode": "color",
            "showUnfilled": True,
            "minVizWidth": 8,
            "minVizHeight": 16,
            "namePlacement": "auto",
            "sizing": "auto",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        },
        overrides=overrides,
    )


def table(
    title: str,
    description: str,
    queries: Sequence[Query],
    *,
    size: tuple[int, int] = (24, 8),
    overrides: Sequence[Override] = (),
    transformations: Sequence[Json] = (),
    sort_by: str = "",
    empty: str = "–",
) -> Json:
    """Rows of labels and numbers."""
    custom: Json = {"align": "auto", "cellOptions": {"type": "auto"}, "inspect": False}
    options: Json = {"showHeader": True, "cellHeight": "sm", "footer": {"show": False, "reducer": ["sum"], "fields": ""}}
    if sort_by:
        options["sortBy"] = [{"displayName": sort_by, "desc": True}]
    return _panel(
        "table",
        title,
        description,
        queries,
        size=size,
        defaults=_defaults(Unit.COUNT, empty=empty, custom=custom),
        options=options,
        overrides=overrides,
        transformations=transformations,
    )


def row(title: str, *, folded: Sequence[Json] | None = None) -> Json:
    """A heading; with `folded` panels it is closed at first."""
    return {
        "type": "row",
        "title": title,
        "collapsed": folded is not None,
        "gridPos": {"w": COLUMNS, "h": 1, "x": 0, "y": 0},
        "panels": list(folded or []),
    }
