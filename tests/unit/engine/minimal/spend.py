"""The smallest traces that raise each code of the spend family."""

from __future__ import annotations

from collections.abc import Callable

from trainbudget.events import AnyEvent
from unit.engine.traces import Build


def cost_over_budget() -> list[AnyEvent]:
    build = Build(price=4.0, budget={"cost": 1.0, "steps_total": 2000}).gpu().start()
    return build.steps(200).end("interrupted")


def time_over_budget() -> list[AnyEvent]:
    return Build(budget={"run_time_s": 900.0, "steps_total": 2000}).gpu().start().steps(200).end("interrupted")


def eval_share(eval_s: float = 40.0, every: int = 100, evaluations: int = 3) -> list[AnyEvent]:
    build = Build().gpu().start()
    for _ in range(evaluations):
        build.steps(every).phase("eval", eval_s)
    return build.end()


def save_share(save_s: float = 20.0, every: int = 100, saves: int = 3) -> list[AnyEvent]:
    build = Build().gpu().start()
    for _ in range(saves):
        build.steps(every).phase("save", save_s)
    return build.end()


def log_share(log_s: float = 1.0, every: int = 10, logs: int = 60) -> list[AnyEvent]:
    build = Build().gpu().start()
    for _ in range(logs):
        build.steps(every).phase("log", log_s)
    return build.end()


def wasted_spend() -> list[AnyEvent]:
    """Half of the time lies between steps and nothing says why."""
    build = Build(host_period_s=60.0, sample_period_s=10.0).gpu().start()
    for _ in range(100):
        build.steps(1, 60.0, wait_s=None).wait(50.0)
    return build.end()


def nothing_learned(bad: float = float("nan")) -> list[AnyEvent]:
    return Build().gpu().start().steps(100, loss=lambda n: 2.0 if n < 60 else bad).end()


def unsaved_work(spot: bool = False, hours: float = 6.5) -> list[AnyEvent]:
    build = Build(sample_period_s=30.0, host_period_s=300.0, spot=spot or None).gpu().start()
    return build.steps(int(hours * 120), 30.0).end("interrupted")


MINIMAL: dict[str, Callable[[], list[AnyEvent]]] = {
    "cost_over_budget": cost_over_budget,
    "time_over_budget": time_over_budget,
    "eval_share": eval_share,
    "save_share": save_share,
    "log_share": log_share,
    "wasted_spend": wasted_spend,
    "nothing_learned": nothing_learned,
    "unsaved_work": unsaved_work,
}
