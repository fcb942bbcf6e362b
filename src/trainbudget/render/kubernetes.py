"""The rules and dashboards as Kubernetes objects, for the Prometheus operator and Grafana's sidecar."""

from __future__ import annotations

import json

from trainbudget.render import rules
from trainbudget.render.grafana import dashboards
from trainbudget.render.yaml_text import to_yaml


def prometheus_rule_yaml() -> str:
    groups = [rules.threshold_group(), rules.recording_group(), rules.alert_group()]
    document = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "trainbudget", "labels": {"app.kubernetes.io/name": "trainbudget"}},
        "spec": {"groups": groups},
    }
    return to_yaml(document, comment=rules.GENERATED)


def dashboards_yaml() -> str:
    """One ConfigMap with all dashboards; the label is the one Grafana's sidecar looks for by default."""
    document = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "trainbudget-dashboards", "labels": {"grafana_dashboard": "1"}},
        "data": {f"trainbudget-{name}.json": json.dumps(board, ensure_ascii=False) for name, board in dashboards().items()},
    }
    return to_yaml(document, comment=rules.GENERATED)
