"""Feeding a list of facts to an engine in tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trainbudget.engine.engine import Engine
from trainbudget.events import AnyEvent
from trainbudget.findings import Finding, Severity


def fed(events: Iterable[AnyEvent], **options: Any) -> Engine:
    engine = Engine(**options)
    for event in events:
        engine.feed(event)
    return engine


def findings(events: Iterable[AnyEvent], code: str | None = None, **options: Any) -> list[Finding]:
    """The findings of a trace, of one code where it is given."""
    return [f for f in fed(events, **options).findings if code is None or f.code == code]


def loud(events: Iterable[AnyEvent], **options: Any) -> list[Finding]:
    """The findings at warning or above."""
    return [f for f in fed(events, **options).findings if f.severity.level >= Severity.WARNING.level]
