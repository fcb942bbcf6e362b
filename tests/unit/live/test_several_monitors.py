"""Several monitors in one process, several attempts under one name, numbers of all kinds, names that are no text."""

from __future__ import annotations

import json

import pytest

from trainbudget.events import Header, Step
from trainbudget.live.batch import host_number
from trainbudget.monitor import Monitor
from trainbudget.trace import decode, encode, read_trace


def _run(directory, steps: int = 3, **numbers) -> Monitor:
    with Monitor(backend="none", listen="off", log=False, run_directory=str(directory), price="3600 USD/h") as monitor:
        for _ in range(steps):
            with monitor.step(**numbers):
                pass
    return monitor


def test_seconds_before_the_first_monitor_are_billed_once(tmp_path) -> None:
    """Four monitors after one another once billed 12.3 GPU-seconds for 4.3 s of wall time."""
    first = _run(tmp_path / "a")
    second, third = _run(tmp_path / "b"), _run(tmp_path / "c")
    for later in (second, third):
        assert later.report is not None
        assert later.report.header.process_started_s == 0.0
    assert first.report is not None


def test_a_second_attempt_under_the_same_name_has_a_record_of_its_own(tmp_path) -> None:
    """Both attempts once shared a trace whose seconds overlapped: most of the second one's time was lost."""
    one, two = _run(tmp_path / "run", steps=4), _run(tmp_path / "run", steps=2)
    assert one.directory != two.directory
    for monitor, steps in ((one, 4), (two, 2)):
        assert monitor.directory is not None
        assert json.loads((monitor.directory / "summary.json").read_text())["steps"] == steps
        assert sum(isinstance(event, Step) for event in read_trace(monitor.directory)) >= 1


def test_numbers_of_other_kinds_are_numbers() -> None:
    class Scalar:
        def __float__(self) -> float:
            return 2.5

    class OnDevice(Scalar):
        device = type("Device", (), {"type": "cuda"})()

    assert host_number(3) == 3.0
    assert host_number(Scalar()) == 2.5
    assert host_number(OnDevice()) is None, "reading it would wait for the device"
    assert host_number("three") is None
    assert host_number(None) is None


def test_tensors_as_counts_reach_the_record(tmp_path) -> None:
    torch = pytest.importorskip("torch")
    monitor = _run(tmp_path / "t", tokens=torch.tensor(7), samples=torch.tensor(2))
    assert monitor.report is not None
    assert monitor.report.steps.tokens == 21.0
    assert monitor.directory is not None
    steps = [e for e in read_trace(monitor.directory) if isinstance(e, Step)]
    assert sum(s.tokens or 0.0 for s in steps) == 21.0


def test_a_name_that_is_no_utf8_keeps_its_record_readable() -> None:
    header = decode(encode(Header(run="ev\udcffil")))
    assert isinstance(header, Header)
    assert header.run == "ev\\udcffil"
