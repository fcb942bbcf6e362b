"""What an alert is, with the series that make it fire and those that must not: the rule tests are rendered from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainbudget.findings import Severity

#: Where the runbook is, relative to the repository. Whoever serves the docs sets their address here and renders again.
RUNBOOK_URL = "docs/alerts.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertSpec:
    """An alert.

    Attributes:
        name: CamelCase, begins with `Trainbudget`.
        expr: PromQL.
        hold: how long it must be true.
        severity: of the alert; None = the series carry their own.
        route: who hears of it; may be a template.
        summary: one line with the number, a template.
        description: what it means and what it costs, a template.
        runbook: what to do first; a paragraph of docs/alerts.md.
        fires, silent: input series (promtool notation, a sample a minute, the name -> values) of its two tests; both at `at`.
    """

    name: str
    expr: str
    hold: str
    severity: Severity | None
    route: str
    summary: str
    description: str
    title: str
    condition: str
    runbook: str
    fires: Mapping[str, str]
    silent: Mapping[str, str]
    at: str = "45m"
    code: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def anchor(self) -> str:
        return self.name.lower()

    @property
    def runbook_url(self) -> str:
        return f"{RUNBOOK_URL}#{self.anchor}"
