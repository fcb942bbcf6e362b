"""The engine: a deterministic state machine. `feed(event)` in order, `report()` whenever somebody wants to look."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from trainbudget.engine.detect import DETECTORS
from trainbudget.engine.detect.base import Detector, Signal, View
from trainbudget.engine.intake import sane
from trainbudget.engine.ledger import Ledger
from trainbudget.engine.report import Report
from trainbudget.engine.reporting import report_of
from trainbudget.engine.timeline import Timeline
from trainbudget.events import AnyEvent, End, Event, Header, Phase
from trainbudget.findings import Advice, Finding, Severity

#: Seconds of trace time between two looks of the detectors; a moment (out of memory, end, exception) is looked at at once.
CHECK_S = 5.0
#: A condition that comes back this soon after it was cleared is the same finding again.
REOPEN_S = 600.0
#: A run that raises more than this many findings has one problem; the first ones tell which.
MOST_FINDINGS = 500
#: Causes that a better one may still replace.
OPEN_CAUSES = (None, "unknown")


class Engine:
    """Feed facts, read findings and the ledger. Two engines fed the same facts say the same.

    Args:
        ignore: finding codes that are never raised.
        thresholds: `code.name` or `name` -> the user's value.
        advise: gives a finding its advice when it is raised (pure, as everything here).
    """

    def __init__(
        self,
        *,
        ignore: Iterable[str] = (),
        thresholds: Mapping[str, float] | None = None,
        detectors: Sequence[type[Any]] = DETECTORS,
        advise: Callable[[Finding, Report], tuple[Advice, ...]] | None = None,
    ) -> None:
        self.timeline = Timeline()
        self.ledger = Ledger(self.timeline)
        self._detectors: list[Detector] = [d() for d in detectors]
        self._periods_s = sorted({d.every_s for d in self._detectors})
        self._due_s = [0.0] * len(self._periods_s)
        self._looks: dict[tuple[bool, ...], list[Detector]] = {}  # periods that are due -> detectors, in order
        self._thresholds = dict(thresholds or {})
        self._board = Board(frozenset(ignore))
        self._next_check_s = 0.0
        self._advise = advise

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings, oldest first."""
        return tuple(self._board.findings)

    def feed(self, event: AnyEvent) -> None:
        timeline = self.timeline
        event = sane(event, timeline.now_s)
        timeline.feed(event)
        self.ledger.feed(event)
        kind = type(event)
        # Collections of garbage are many and urgent to nobody.
        moment = kind is End or (kind is Event and event.event != "gc")  # type: ignore[union-attr]
        if kind is Header:
            self._take_header(event)  # type: ignore[arg-type]
        elif moment or kind is Phase or timeline.now_s >= self._next_check_s:
            self._check(urgent=moment)

    def report(self) -> Report:
        return report_of(self.timeline, self.ledger, self.findings)

    def _take_header(self, header: Header) -> None:
        """Muting and thresholds travel in the record, so that a replay says what the live run said."""
        if header.ignore:
            self._board.ignore = self._board.ignore | frozenset(header.ignore)
        for name, value in (header.thresholds or {}).items():
            self._thresholds.setdefault(name, value)

    def _check(self, *, urgent: bool) -> None:
        now_s = self.timeline.now_s
        self._next_check_s = now_s + CHECK_S
        view = View(self.timeline, self.ledger, self._thresholds, self._board.active_codes)
        board = self._board
        due = self._due(now_s, urgent=urgent)
        for detector in due:
            for signal in detector.check(view):
                board.take(detector, signal, now_s)
        for detector in [d for d in due if d in board.watched] if board.watched else ():
            board.fade(detector, now_s)
        if self._advise is not None and board.unadvised:
            self._add_advice(self._advise)

    def _due(self, now_s: float, *, urgent: bool) -> list[Detector]:
        """The detectors whose period is over: all of one period are due together."""
        due_s = self._due_s
        flags = tuple(urgent or now_s >= due for due in due_s)
        for place, is_due in enumerate(flags):
            if is_due:
                due_s[place] = now_s + self._periods_s[place]
        look = self._looks.get(flags)
        if look is None:
            periods = {p for p, is_due in zip(self._periods_s, flags, strict=True) if is_due}
            look = self._looks[flags] = [d for d in self._detectors if d.every_s in periods]
        return look

    def _add_advice(self, advise: Callable[[Finding, Report], tuple[Advice, ...]]) -> None:
        findings = self._board.findings
        report = self.report()
        for place in sorted(self._board.unadvised):
            findings[place] = msgspec.structs.replace(findings[place], advice=tuple(advise(findings[place], report)))
        self._board.unadvised.clear()


class _Condition(msgspec.Struct):
    """A condition that is being watched: since when it holds, and when it held last."""

    signal: Signal
    since_s: float
    seen_s: float
    finding: int | None = None  # its place on the board


_Conditions: TypeAlias = dict[tuple[str, "int | None", "int | None"], _Condition]


class Board:
    """What has been raised. Debounce and nothing else: a condition must hold for `hold_s` and be gone for `clear_s`."""

    def __init__(self, ignore: frozenset[str]) -> None:
        self.findings: list[Finding] = []
        self.ignore = ignore
        self.active_codes: frozenset[str] = frozenset()
        self.unadvised: set[int] = set()  # places of findings that are new, or of which the cause has become known
        self.watched: dict[Detector, _Conditions] = {}  # detectors with a condition that holds or fades

    def take(self, detector: Detector, signal: Signal, now_s: float) -> None:
        """A condition holds now: it is raised once it has held for `hold_s`."""
        if signal.code in self.ignore:
            return
        if signal.once:
            self._raise(signal, now_s)
            return
        known, hold_s = self.watched.setdefault(detector, {}), detector.hold_s
        condition = known.get(signal.key)
        if condition is None:
            condition = known[signal.key] = _Condition(signal, now_s, now_s)
        condition.seen_s = now_s
        if condition.finding is not None:
            self._update(condition.finding, signal)
        elif now_s - condition.since_s >= hold_s:
            place = self._reopen(signal, now_s)
            condition.finding = self._raise(signal, now_s) if place is None else place
            if place is not None:
                self._update(place, signal)

    def fade(self, detector: Detector, now_s: float) -> None:
        """After a look: what no longer holds is cleared once it has been gone for `clear_s`."""
        known, clear_s = self.watched[detector], detector.clear_s
        for key in [k for k, c in known.items() if c.seen_s < now_s]:
            condition = known[key]
            if condition.finding is None:
                del known[key]
            elif now_s - condition.seen_s >= clear_s:
                self._clear(condition.finding, now_s)
                del known[key]
        if not known:
            del self.watched[detector]

    def _raise(self, signal: Signal, now_s: float) -> int | None:
        if len(self.findings) >= MOST_FINDINGS:
            return None
        severity = signal.severity or default_severity(signal.code)
        self.findings.append(
            Finding(
                code=signal.code,
                severity=severity,
                raised_s=now_s,
                gpu=signal.gpu,
                rank=signal.rank,
                phase=signal.phase,
                cause=signal.cause,
                summary=signal.summary,
                evidence=dict(signal.evidence),
                forecast=signal.forecast,
            )
        )
        self._refresh()
        self.unadvised.add(len(self.findings) - 1)
        return len(self.findings) - 1

    def _reopen(self, signal: Signal, now_s: float) -> int | None:
        for place in range(len(self.findings) - 1, -1, -1):
            old = self.findings[place]
            if (old.code, old.gpu, old.rank) == signal.key and old.cleared_s is not None and not _differs(old, signal):
                if now_s - old.cleared_s > REOPEN_S:
                    return None
                self.findings[place] = msgspec.structs.replace(old, cleared_s=None)
                self._refresh()
                return place
        return None

    def _update(self, place: int, signal: Signal) -> None:
        old = self.findings[place]
        severity = signal.severity or old.severity
        worse = severity if severity.level > old.severity.level else old.severity
        changed: dict[str, Any] = {}
        if worse is not old.severity:
            # What made it worse is what matters now.
            changed.update(severity=worse, summary=signal.summary, evidence=dict(signal.evidence))
        if signal.forecast is not None and signal.forecast != old.forecast:
            changed["forecast_latest"] = signal.forecast
            if old.forecast is None:
                changed["forecast"] = signal.forecast
        if old.cause in OPEN_CAUSES and signal.cause not in OPEN_CAUSES:
            changed["cause"] = signal.cause
            if old.cause is not None:
                changed.update(summary=signal.summary, evidence=dict(signal.evidence))  # they said that nobody knows
            self.unadvised.add(place)
        if changed:
            self.findings[place] = msgspec.structs.replace(old, **changed)

    def _clear(self, place: int, now_s: float) -> None:
        self.findings[place] = msgspec.structs.replace(self.findings[place], cleared_s=now_s)
        self._refresh()

    def _refresh(self) -> None:
        self.active_codes = frozenset(f.code for f in self.findings if f.cleared_s is None)


def _differs(old: Finding, signal: Signal) -> bool:
    """Whether both name a cause, and not the same one: then it is another condition."""
    return old.cause not in OPEN_CAUSES and signal.cause not in OPEN_CAUSES and old.cause != signal.cause


_SEVERITIES: dict[str, Severity] = {d.record.code: d.record.severity for d in DETECTORS}


def default_severity(code: str) -> Severity:
    """The severity declared in the code's record."""
    return _SEVERITIES.get(code, Severity.WARNING)
