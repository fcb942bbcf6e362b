"""All dashboards, as the files that Grafana provisions."""

from __future__ import annotations

import json

from trainbudget.render.grafana_fields import Json
from trainbudget.render.grafana_fleet import fleet
from trainbudget.render.grafana_gpu import gpu
from trainbudget.render.grafana_monitor import monitor
from trainbudget.render.grafana_run import run


def dashboards() -> dict[str, Json]:
    """File name without its ending -> dashboard."""
    return {"fleet": fleet(), "run": run(), "gpu": gpu(), "monitor": monitor()}


def to_json(board: Json) -> str:
    return json.dumps(board, indent=1, ensure_ascii=False) + "\n"
