"""What a metric is: one declaration that the exporter, the rules, the dashboards and the docs are rendered from."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from trainbudget.engine.report import Report

PREFIX = "trainbudget_"

#: Label values (in the order of the spec's `labels`) and the value; None or a non-finite number = unknown = no series.
Sample: TypeAlias = "tuple[tuple[str, ...], float | None]"


class Kind(str, enum.Enum):
    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class Unit(enum.Enum):
    """What a value is: the suffix of its name (None: none) and Grafana's unit id."""

    SECONDS = "seconds"
    TIMESTAMP = "timestamp"
    BYTES = "bytes"
    RATIO = "ratio"
    WATTS = "watts"
    JOULES = "joules"
    CELSIUS = "celsius"
    HERTZ = "hertz"
    MONEY = "money"
    COUNT = "count"
    FLAG = "flag"
    STATE = "state"
    INFO = "info"

    @property
    def suffix(self) -> str | None:
        return None if self in _UNNAMED else _SUFFIXES.get(self, self.value)

    @property
    def grafana(self) -> str:
        return _GRAFANA[self]


_UNNAMED = frozenset({Unit.MONEY, Unit.COUNT, Unit.FLAG, Unit.STATE})
_SUFFIXES = {Unit.TIMESTAMP: "timestamp_seconds"}
_GRAFANA = {
    Unit.SECONDS: "s",
    Unit.TIMESTAMP: "dateTimeAsIso",
    Unit.BYTES: "bytes",
    Unit.RATIO: "percentunit",
    Unit.WATTS: "watt",
    Unit.JOULES: "joule",
    Unit.CELSIUS: "celsius",
    Unit.HERTZ: "hertz",
    Unit.MONEY: "none",
    Unit.COUNT: "short",
    Unit.FLAG: "bool_on_off",
    Unit.STATE: "none",
    Unit.INFO: "none",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One report with what a metric needs besides: absolute time and the exporter's own cost.

    Attributes:
        zero_unix_s: seconds since 1970 at the trace's t_s = 0.
        now_unix_s: seconds since 1970 now.
        scrape_s: seconds spent answering scrapes since the start.
        dropped: series left out of the last body to keep the limit.
    """

    report: Report
    zero_unix_s: float
    now_unix_s: float
    scrape_s: float = 0.0
    dropped: int = 0

    def unix_s(self, t_s: float | None) -> float | None:
        return None if t_s is None else self.zero_unix_s + t_s

    def age_s(self, t_s: float | None) -> float | None:
        return None if t_s is None else max(0.0, self.now_unix_s - self.zero_unix_s - t_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Counts by upper bound (not cumulative), the rest last, and the sum of all values."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


Read: TypeAlias = Callable[[Snapshot], "Iterable[Sample]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSpec:
    """A metric. Every series also carries `run` and `rank`.

    Attributes:
        stem: the name after `trainbudget_`.
        labels: its labels besides `run` and `rank`.
        read: samples of a snapshot; for a histogram see `read_histogram`.
        at_scrape: an age: read when somebody asks, not when the report was made.
    """

    stem: str
    kind: Kind
    unit: Unit
    help: str
    labels: tuple[str, ...] = ()
    read: Read = lambda _: ()
    read_histogram: Callable[[Snapshot], Histogram | None] | None = None
    at_scrape: bool = False

    @property
    def name(self) -> str:
        return PREFIX + self.stem

    def samples(self, snapshot: Snapshot) -> Iterator[tuple[tuple[str, ...], float]]:
        """The known samples only."""
        for labels, value in self.read(snapshot):
            if value is not None and math.isfinite(value):
                yield labels, float(value)

    def at(self, window: str = "", /, **match: str) -> str:
        """The metric in PromQL: `at(run="a", code="!=b", gpu="~1|2")`, optionally with a range window."""
        return self.name + selector(match) + (f"[{window}]" if window else "")


def selector(match: Mapping[str, str]) -> str:
    """`{a="x",b=~"y"}` of label matchers; a value may begin with `=`, `!=`, `=~`, `~` or `!~`."""
    if not match:
        return ""
    parts = []
    for label, value in match.items():
        for operator in ("!=", "!~", "=~", "~", "="):
            if value.startswith(operator):
                text = value[len(operator) :]
                parts.append(f'{label}{"=~" if operator == "~" else operator}"{text}"')
                break
        else:
            parts.append(f'{label}="{value}"')
    return "{" + ",".join(parts) + "}"
