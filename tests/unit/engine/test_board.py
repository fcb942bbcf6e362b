"""What was raised stays one finding while it is the same condition, and learns what becomes known."""

from __future__ import annotations

from trainbudget.engine.detect.base import BaseDetector, Signal
from trainbudget.engine.engine import REOPEN_S, Board
from trainbudget.findings import Severity


class Watch(BaseDetector):
    clear_s = 30.0


def board(*looks: tuple[float, Signal | None]) -> Board:
    found, detector = Board(frozenset()), Watch()
    for now_s, signal in looks:
        if signal is not None:
            found.take(detector, signal, now_s)
        if detector in found.watched:
            found.fade(detector, now_s)
    return found


def signal(cause: str | None = None, severity: Severity = Severity.INFO, code: str = "input_bound") -> Signal:
    return Signal(code, cause=cause, severity=severity, summary=f"{cause}")


def test_what_comes_back_learns_its_cause():
    found = board((0.0, signal()), (40.0, None), (60.0, signal("cold_cache", Severity.WARNING))).findings
    assert [(f.cause, f.severity, f.cleared_s) for f in found] == [("cold_cache", Severity.WARNING, None)]


def test_another_cause_is_another_finding():
    found = board((0.0, signal("workers")), (40.0, None), (60.0, signal("storage"))).findings
    assert [f.cause for f in found] == ["workers", "storage"]
    assert found[0].cleared_s == 40.0


def test_the_same_cause_comes_back():
    found = board((0.0, signal("workers")), (40.0, None), (60.0, signal("workers"))).findings
    assert len(found) == 1


def test_after_a_while_it_is_new():
    found = board((0.0, signal("workers")), (40.0, None), (41.0 + REOPEN_S, signal("workers"))).findings
    assert len(found) == 2


def test_nobody_knows_until_somebody_does():
    found = board((0.0, signal("unknown", code="straggler")), (10.0, signal("clock", code="straggler"))).findings
    assert [(f.cause, f.summary) for f in found] == [("clock", "clock")]


def test_a_known_cause_stays():
    found = board((0.0, signal("clock", code="straggler")), (10.0, signal("unknown", code="straggler"))).findings
    assert [f.cause for f in found] == ["clock"]
