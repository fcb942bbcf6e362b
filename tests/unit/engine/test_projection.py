"""The projected end of a run does not jump when an evaluation passes through the window."""

from __future__ import annotations

from trainbudget.engine.engine import Engine
from trainbudget.events import BudgetFact, Event, Header, Phase, Price, Step, Tick


def test_projection_is_steady_through_evaluations() -> None:
    """One-second steps, a 60 s evaluation every 200: each projection is within 3 % of the true end once two have been seen.

    It used to jump by a third while an evaluation lay in the window of 100 steps.
    """
    engine = Engine()
    engine.feed(Header(budget=BudgetFact(steps_total=4000.0), price=Price(per_gpu_hour=3600.0, currency="USD", source="given")))
    engine.feed(Event(t_s=10.0, event="train_begin"))
    t_s, costs = 10.0, []
    for step in range(1, 1601):
        engine.feed(Step(t_s=t_s + 1.0, step=step, start_s=t_s, data_wait_s=0.0))
        t_s += 1.0
        if step % 200 == 0:
            for tick in range(1, 12):
                engine.feed(Tick(t_s=t_s + 5.0 * tick))
            engine.feed(Phase(t_s=t_s + 60.0, phase="eval", start_s=t_s))
            t_s += 60.0
        if step > 500 and step % 20 == 0:
            projection = engine.report().projection
            assert projection is not None
            assert projection.cost is not None
            costs.append(projection.cost)
    true_cost = 10.0 + 4000.0 + 20 * 60.0
    assert all(abs(cost / true_cost - 1.0) < 0.03 for cost in costs)
