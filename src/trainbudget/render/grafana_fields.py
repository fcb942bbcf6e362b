"""What panels are described with: queries, threshold colours, overrides, value texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One PromQL query of a panel. `now` = the newest value only; `table` = labels become columns."""

    expr: str
    legend: str = ""
    now: bool = False
    table: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Colours from values on: `base` below the first."""

    base: str = "green"
    marks: tuple[tuple[float, str], ...] = ()

    def json(self) -> Json:
        steps: list[Json] = [{"color": self.base, "value": None}]
        return {"mode": "absolute", "steps": steps + [{"color": color, "value": value} for value, color in self.marks]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """Properties of the fields with one display name, or (`pattern`) of those that match a regular expression."""

    name: str = ""
    pattern: str = ""
    properties: Mapping[str, Any] = field(default_factory=dict)

    def json(self) -> Json:
        matcher = {"id": "byRegexp", "options": self.pattern} if self.pattern else {"id": "byName", "options": self.name}
        return {"matcher": matcher, "properties": [{"id": key, "value": value} for key, value in self.properties.items()]}


def colour(name: str) -> Json:
    return {"mode": "fixed", "fixedColor": name}


def line(name: str, color: str, *, dashed: bool = False, unstacked: bool = False, width: int = 2) -> Override:
    """A named line of its own colour; dashed for what is planned or expected."""
    properties: Json = {"color": colour(color), "custom.lineWidth": width, "custom.fillOpacity": 0}
    if dashed:
        properties["custom.lineStyle"] = {"fill": "dash", "dash": [10, 10]}
    if unstacked:
        properties["custom.stacking"] = {"mode": "none", "group": "A"}
    return Override(name=name, properties=properties)


def mappings(texts: Mapping[int, tuple[str, str]]) -> list[Json]:
    """Number -> (text, colour)."""
    options = {str(v): {"text": text, "color": color, "index": i} for i, (v, (text, color)) in enumerate(texts.items())}
    return [{"type": "value", "options": options}]
