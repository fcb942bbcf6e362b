"""Alertmanager's configuration: routes and inhibitions from the catalogue, receivers to be filled in."""

from __future__ import annotations

from trainbudget.findings import Route
from trainbudget.render import rules
from trainbudget.render.yaml_text import to_yaml

HEAD = f"""{rules.GENERATED}
Receivers: give each route an integration of yours (slack_configs, pagerduty_configs, email_configs, webhook_configs ...).
As it stands, all alerts are visible in Alertmanager and go nowhere else."""


def alertmanager_yaml() -> str:
    return to_yaml(rules.alertmanager_config({route: {} for route in Route}), comment=HEAD)
