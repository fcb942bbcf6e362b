"""A standstill is booked as it goes on, once it is one: nothing stays pending until the next two minutes are full."""

from __future__ import annotations

import pytest

from trainbudget.engine.engine import Engine
from trainbudget.events import Event, Header, Step, Tick


def test_a_standstill_is_booked_with_every_fact() -> None:
    engine = Engine()
    engine.feed(Header())
    engine.feed(Event(t_s=0.0, event="train_begin"))
    for step in range(1, 41):
        engine.feed(Step(t_s=float(step), step=step, start_s=step - 1.0, data_wait_s=0.0))
    for second in range(45, 400, 5):
        engine.feed(Tick(t_s=float(second)))
        if second > 40 + 125:
            assert engine.ledger.pending_s == pytest.approx(0.0), second
            assert engine.ledger.seconds["stall"] == pytest.approx(second - 40.0)
