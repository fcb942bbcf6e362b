"""Everything that is generated: rules, dashboards, docs, each from what declares it. `python -m trainbudget.render [--check]`."""

from __future__ import annotations

from collections.abc import Callable


def generated() -> dict[str, Callable[[], str]]:
    """Path in the repository -> function that makes the file's text."""
    from trainbudget.render import docs, findings_docs, grafana, kubernetes, rules, stack

    out: dict[str, Callable[[], str]] = {
        "docs/metrics.md": docs.metrics_markdown,
        "docs/alerts.md": docs.alerts_markdown,
        "docs/findings.md": findings_docs.findings_markdown,
        "docs/levers.md": findings_docs.levers_markdown,
        "grafana/rules/thresholds.yaml": rules.thresholds_yaml,
        "grafana/rules/recording.yaml": rules.recording_yaml,
        "grafana/rules/alerts.yaml": rules.alerts_yaml,
        "grafana/stack/alertmanager.yml": stack.alertmanager_yaml,
        "grafana/stack/kubernetes/prometheusrule.yaml": kubernetes.prometheus_rule_yaml,
        "grafana/stack/kubernetes/dashboards.yaml": kubernetes.dashboards_yaml,
    }
    for name, board in grafana.dashboards().items():
        out[f"grafana/dashboards/{name}.json"] = lambda board=board: grafana.to_json(board)  # type: ignore[misc]
    return out
