"""What things look like on every dashboard: one colour a bucket, a state, a severity; named ones suit light and dark."""

from __future__ import annotations

from trainbudget.catalog.recording import FINDING
from trainbudget.catalog.run_metrics import STATES
from trainbudget.render.grafana_fields import Override, colour, mappings

#: Green is what was bought, blue what it takes besides, red and orange what bought nothing.
BUCKET_COLOURS = {
    "compute": "semi-dark-green",
    "communication": "light-green",
    "eval": "semi-dark-blue",
    "save": "light-blue",
    "log": "super-light-blue",
    "startup": "semi-dark-purple",
    "warmup": "light-purple",
    "data_wait": "semi-dark-orange",
    "host_gap": "light-orange",
    "padding": "dark-yellow",
    "optimizer_offload": "super-light-yellow",
    "idle": "light-red",
    "stall": "dark-red",
    "lost": "semi-dark-red",
    "other": "text",
}

_STATE_COLOURS = {
    "starting": "semi-dark-purple",
    "training": "semi-dark-green",
    "evaluating": "semi-dark-blue",
    "saving": "light-blue",
    "compiling": "light-purple",
    "stalled": "dark-red",
    "idle": "semi-dark-orange",
    "finished": "dark-green",
    "interrupted": "dark-yellow",
    "stopped": "dark-yellow",
    "failed": "semi-dark-red",
}

STATE_TEXTS = mappings(
    {0: ("gone", "super-light-red"), **{number: (name, _STATE_COLOURS[name]) for name, number in STATES.items()}}
)
SEVERITY_TEXTS = mappings({1: ("info", "semi-dark-blue"), 2: ("warning", "semi-dark-orange"), 3: ("critical", "dark-red")})


def bucket_overrides() -> list[Override]:
    return [Override(name=bucket, properties={"color": colour(name)}) for bucket, name in BUCKET_COLOURS.items()]


def severity_value(**match: str) -> str:
    """PromQL: active findings as 1 info, 2 warning, 3 critical, by run and code."""
    parts = [
        f"{level} * (max by (run, code) ({FINDING.at(severity=name, **match)}) > bool 0)"
        for level, name in ((3, "critical"), (2, "warning"), (1, "info"))
    ]
    return "\nor on (run, code) ".join(parts)
