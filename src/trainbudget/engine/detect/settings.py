"""Settings: what the settings check found becomes a finding, once for each setting."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.events import Lint
from trainbudget.findings import CodeRecord, Route, Severity

_EVIDENCE = {"setting": "as the user wrote it", "suggestion": "what to write instead, null where nothing is known"}


class _LintDetector(BaseDetector):
    """Lint facts of one code. What was said once stays true for the run, so each is raised once and never cleared."""

    every_s = 5.0
    record: ClassVar[CodeRecord]
    words: ClassVar[str]

    def __init__(self) -> None:
        self._read = 0  # lint facts looked at so far
        self._said: set[str | None] = set()

    def check(self, view: View) -> Iterable[Signal]:
        lints = view.timeline.lints
        if len(lints) == self._read:
            return
        new, self._read = lints[self._read :], len(lints)
        for lint in new:
            if lint.code == self.record.code and lint.setting not in self._said:
                self._said.add(lint.setting)
                yield self._signal(lint)

    def _signal(self, lint: Lint) -> Signal:
        hint = f": {lint.suggestion}" if lint.suggestion else ""
        return Signal(
            self.record.code,
            summary=f"{lint.setting or 'a setting'} {self.words}{hint}",
            evidence={"setting": lint.setting, "suggestion": lint.suggestion},
            once=True,
        )


class SettingUnknown(_LintDetector):
    words = "is not a setting of the installed version"
    record = CodeRecord(
        code="setting_unknown",
        family="settings",
        severity=Severity.WARNING,
        title="A setting does not exist",
        condition="The settings check met a name that the installed framework does not know.",
        silent="Where the settings check did not run or does not know the framework's version.",
        evidence=_EVIDENCE,
        route=Route.WEEKLY,
        runbook="Correct the name, or remove it: it changes nothing. `trainbudget lint` shows the nearest real names.",
    )


class SettingRenamed(_LintDetector):
    words = "has a new name"
    record = CodeRecord(
        code="setting_renamed",
        family="settings",
        severity=Severity.INFO,
        title="A setting has a new name",
        condition="The settings check met a name that the installed version has renamed or deprecated.",
        silent="Where the settings check did not run; while the old name is still the only one the installed version has.",
        evidence=_EVIDENCE,
        route=Route.WEEKLY,
        runbook="Write the new name; the old one goes away with a coming version.",
    )


class SettingNoEffect(_LintDetector):
    words = "has no effect here"
    record = CodeRecord(
        code="setting_no_effect",
        family="settings",
        severity=Severity.INFO,
        title="A setting has no effect",
        condition="The settings check met a setting that is accepted and does nothing in this combination.",
        silent="Where the settings check did not run.",
        evidence=_EVIDENCE,
        route=Route.WEEKLY,
        runbook="Remove it, or set what it depends on.",
    )


DETECTORS = (SettingUnknown, SettingRenamed, SettingNoEffect)
