"""The numbers that the alert rules compare with: one file of rules holds them all, and nothing else has to be edited."""

from __future__ import annotations

from dataclasses import dataclass

from trainbudget.catalog.spec import PREFIX

#: Recorded once for each threshold, told apart by the label `name`.
THRESHOLD_RECORD = PREFIX.rstrip("_") + ":threshold"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleThreshold:
    """A number of the alert rules, with its reason."""

    name: str
    value: float
    unit: str
    reason: str

    @property
    def series(self) -> str:
        return f'{THRESHOLD_RECORD}{{name="{self.name}"}}'

    def below(self, expression: str) -> str:
        """PromQL: the series of `expression` that are below this."""
        return f"({expression}) < on () group_left () {self.series}"

    def above(self, expression: str) -> str:
        """PromQL: the series of `expression` that are above this."""
        return f"({expression}) > on () group_left () {self.series}"


FRESH_S = RuleThreshold(
    name="fresh_seconds",
    value=300.0,
    unit="s",
    reason="an older report is no news: the longest usual scrape interval is a minute, a tick comes every 5 s",
)
OOM_SOON_S = RuleThreshold(
    name="oom_soon_seconds",
    value=1800.0,
    unit="s",
    reason="half an hour is enough to look, save a checkpoint and stop; a later end is a ticket",
)
WASTED_RATIO = RuleThreshold(
    name="wasted_ratio",
    value=0.25,
    unit="ratio",
    reason="start-up, saves and evaluations of healthy runs stay below a fifth",
)
WASTED_PER_HOUR = RuleThreshold(
    name="wasted_per_hour",
    value=0.5,
    unit="money",
    reason="below half a unit of money an hour a ticket costs more than it saves",
)
FLEET_WASTED_PER_HOUR = RuleThreshold(
    name="fleet_wasted_per_hour",
    value=5.0,
    unit="money",
    reason="what many small wastes add up to before somebody should look at the whole",
)
REPORT_AGE_S = RuleThreshold(
    name="report_age_seconds",
    value=60.0,
    unit="s",
    reason="a report is made every 5 s at least; a minute is twelve missed ones",
)

THRESHOLDS = (FRESH_S, OOM_SOON_S, WASTED_RATIO, WASTED_PER_HOUR, FLEET_WASTED_PER_HOUR, REPORT_AGE_S)
