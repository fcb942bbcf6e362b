"""Peaks of a counter that nobody resets: where common lengths are the longest so far, only the first few are dated."""

from __future__ import annotations

import pytest

from unit.engine.feeding import findings
from unit.engine.minimal.memory import card, hold
from unit.engine.traces import Build

LENGTHS = (2500.0, 3000.0, 4500.0, 6000.0)  # records in the first steps (the very first is not dated); then shorter ones


def records(peaks: tuple[float, ...], *, rest: float = 10.0, known: float = 9000.0) -> Build:
    build = card(budget={"max_sequence_tokens": known, "steps_total": 1000}).start()
    for step in range(80):
        tokens, peak = (LENGTHS[step], peaks[step]) if step < len(LENGTHS) else (2000.0 + 100.0 * (step % 7), peaks[-1])
        hold(build, rest, peak, reserved=max(peaks) + 0.1, peak_since="process")
        build.steps(1, 1.0, allocator_every=1, tokens=tokens, max_sequence_tokens=tokens, samples=1.0)
    return build


def told(build: Build) -> list[str]:
    return [f.code for f in findings(build.end("interrupted")) if f.code in ("oom_forecast", "oom_predicted")]


def test_three_records_on_a_line_that_begins_at_rest():
    """10 GiB and 3.6 GiB a thousand tokens: 42.4 GiB at 9000, 39.5 can be had."""
    assert told(records((19.0, 20.8, 26.2, 31.6))) == ["oom_forecast"]


@pytest.mark.parametrize(
    "build",
    [
        records((19.0, 20.8, 26.2, 31.6), known=7000.0),  # 35.2 GiB fit
        records((19.0, 20.8, 21.5, 31.6)),  # not on a line
        records((27.3, 28.0, 30.0, 32.0)),  # its beginning is far above what is held: something else is in it
    ],
)
def test_records_that_say_nothing(build):
    assert told(build) == []
