"""The one path: facts -> engine -> report -> sinks. A live run, the demo and a replay differ only in who feeds it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trainbudget.advise.resolve import advise, advised
from trainbudget.engine.engine import Engine
from trainbudget.engine.report import Report
from trainbudget.events import AnyEvent
from trainbudget.findings import Finding
from trainbudget.sinks.base import FanOut


class Pipeline:
    """Engine with advice, and the sinks behind it. One thread uses it at a time."""

    def __init__(
        self,
        fan_out: FanOut | None = None,
        *,
        ignore: Iterable[str] = (),
        thresholds: Mapping[str, float] | None = None,
    ) -> None:
        self.engine = Engine(ignore=ignore, thresholds=thresholds, advise=advise)
        self.fan_out = fan_out or FanOut(())
        self._seen: dict[int, Finding] = {}

    def feed(self, event: AnyEvent) -> None:
        self.engine.feed(event)

    def publish(self) -> Report:
        """Take the picture of now and hand it to every sink, with what was raised and cleared since the last one."""
        report = self.engine.report()
        raised, cleared = self._changes(report.findings)
        if report.outcome is not None:
            report = advised(report)  # the run is over: what could have been saved is known now
        self.fan_out.write(report, raised, cleared)
        return report

    def close(self) -> None:
        self.fan_out.close()

    def _changes(self, findings: tuple[Finding, ...]) -> tuple[list[Finding], list[Finding]]:
        raised: list[Finding] = []
        cleared: list[Finding] = []
        for place, finding in enumerate(findings):
            before = self._seen.get(place)
            if before is finding:
                continue
            self._seen[place] = finding
            if before is None:
                raised.append(finding)
                if finding.cleared_s is not None:
                    cleared.append(finding)
            elif before.active and not finding.active:
                cleared.append(finding)
            elif (not before.active and finding.active) or finding.severity.level > before.severity.level:
                raised.append(finding)
        return raised, cleared


def replay(events: Iterable[AnyEvent], *, ignore: Iterable[str] = (), **options: Any) -> Report:
    """Feed recorded facts through the pipeline and return its last report.

    Raises:
        TraceError: the trace cannot be read.
    """
    pipeline = Pipeline(ignore=ignore, **options)
    feed = pipeline.engine.feed
    for event in events:
        feed(event)
    return pipeline.publish()
