"""The smallest traces that raise each code and cause of the ranks family."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from trainbudget.events import AnyEvent, Rank
from unit.engine.traces import Build


def healthy_word(rank: int, round_: int, step_s: float) -> dict[str, Any]:
    """Equal ranks with a little noise, deterministic."""
    wobble = 1.0 + 0.02 * (((rank * 7 + round_ * 13) % 11) - 5) / 5.0
    return {
        "step_time_s": step_s * wobble,
        "data_wait_s": 0.01 * step_s * wobble,
        "pre_collective_s": 0.4 * step_s * wobble,
        "power_w": 300.0 * wobble,
        "sm_clock_hz": 1.41e9,
        "utilization_ratio": 0.96,
        "state": "running",
    }


def job(
    change: Callable[[int, int], dict[str, Any]] = lambda rank, round_: {},
    *,
    world_size: int = 4,
    rounds: int = 24,
    step_s: float = 1.0,
    rank: int = 0,
    own: dict[str, Any] | None = None,
) -> Build:
    """A job as its rank 0 sees it: words of the others every ten seconds. `change(rank, round)` plants a fault."""
    build = Build(world_size=world_size, rank=rank).gpu().start()
    for round_ in range(rounds):
        build.steps(max(1, int(10 / step_s)), step_s, **{"pre_collective_s": 0.4 * step_s, **(own or {})})
        for other in range(world_size):
            if other != rank:
                word = {"step": build.step, **healthy_word(other, round_, step_s), **change(other, round_)}
                build.add(Rank(t_s=build.t, rank=other, **word))
    return build


def only(guilty: int, **fields: Any) -> Callable[[int, int], dict[str, Any]]:
    return lambda rank, round_: fields if rank == guilty else {}


def straggler(guilty: int = 2, *, world_size: int = 4, **fields: Any) -> list[AnyEvent]:
    return job(only(guilty, **fields), world_size=world_size).end()


def input_straggler() -> list[AnyEvent]:
    return straggler(data_wait_s=0.3)


def clock_straggler() -> list[AnyEvent]:
    return straggler(1, pre_collective_s=0.65, sm_clock_hz=0.84e9, power_w=240.0)


def unknown_straggler() -> list[AnyEvent]:
    return straggler(3, pre_collective_s=0.65)


def rank_imbalance(extra: float = 0.4, world_size: int = 5) -> list[AnyEvent]:
    """In each round another rank has the long batch."""

    def change(rank: int, round_: int) -> dict[str, Any]:
        late = 1 + (round_ * 3) % (world_size - 1)
        return {"pre_collective_s": 0.4 + extra} if rank == late else {}

    return job(change, world_size=world_size).end()


def failed(*ranks: int, state: str = "failed", own: bool = False) -> list[AnyEvent]:
    """Ranks fail one after another, a round apart, and the job stands still."""
    build = job(rounds=8)
    if own:
        build.moment("exception", type="RuntimeError")
    for number in range(len(ranks) + 2):
        build.wait(10.0)
        for rank in (1, 2, 3):
            gone = rank in ranks[: number + 1]
            build.add(Rank(t_s=build.t, rank=rank, step=build.step, state=state if gone else "running"))
    return build.end("failed", train_end=False)


MINIMAL: dict[str, Callable[[], list[AnyEvent]]] = {
    "straggler/input": input_straggler,
    "straggler/clock": clock_straggler,
    "straggler/unknown": unknown_straggler,
    "rank_imbalance": rank_imbalance,
    "rank_failed_first": partial(failed, 2),
}
