"""What a finding is, and what is declared about each code: the types only, the records stand beside their detectors."""

from __future__ import annotations

import enum
from typing import Any

import msgspec


class Severity(str, enum.Enum):
    """info < warning < critical."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"

    @property
    def level(self) -> int:
        return _LEVELS[self.value]


_LEVELS = {"info": 0, "warning": 1, "critical": 2}


class Route(str, enum.Enum):
    """Who hears of it: somebody is paged, a ticket is opened, it comes with the weekly mail."""

    PAGE = "page"
    TICKET = "ticket"
    WEEKLY = "weekly"


class Forecast(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When it will happen. `low`..`high` is the 90 % interval of `at_step`, or of `at_s` where steps are not the driver."""

    at_s: float | None = None
    at_step: float | None = None
    low: float | None = None
    high: float | None = None


class Advice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One change: the lever's name, the setting as the user would type it, the bound on the saving."""

    lever: str
    setting: str
    saving: dict[str, Any] = msgspec.field(default_factory=dict)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One raised condition, cleared or not."""

    code: str
    severity: Severity
    raised_s: float
    cleared_s: float | None = None
    gpu: int | None = None
    rank: int | None = None
    phase: str | None = None
    cause: str | None = None
    summary: str = ""
    evidence: dict[str, Any] = msgspec.field(default_factory=dict)
    forecast: Forecast | None = None
    forecast_latest: Forecast | None = None
    advice: tuple[Advice, ...] = ()

    @property
    def active(self) -> bool:
        return self.cleared_s is None

    @property
    def name(self) -> str:
        """`code/cause`, as it ends a log line."""
        return f"{self.code}/{self.cause}" if self.cause else self.code


class Threshold(msgspec.Struct, frozen=True, kw_only=True):
    """A tunable number with the reason for its default."""

    name: str
    default: float
    unit: str
    reason: str


class CodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Everything declared about one code; docs, alerts and runbook are rendered from it.

    Attributes:
        condition: when it is raised, in one sentence.
        silent: when it stays silent although it looks like it.
        evidence: key of the evidence -> what it is, with unit.
        levers: ids of the levers that would stop it, best first.
        runbook: what the person who is called does first.
    """

    code: str
    family: str
    severity: Severity
    title: str
    condition: str
    silent: str
    evidence: dict[str, str] = msgspec.field(default_factory=dict)
    thresholds: tuple[Threshold, ...] = ()
    causes: tuple[str, ...] = ()
    levers: tuple[str, ...] = ()
    route: Route = Route.TICKET
    runbook: str = ""
