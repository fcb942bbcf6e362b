"""The smallest traces that raise each code and cause of the memory family, and disk_forecast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainbudget.events import Allocator, AnyEvent, Event, LongBatch, Phase, PhaseBegin, Plan, Process, Rank
from unit.engine.traces import GIB, Build

CONTEXT = 0.45


def card(limit_gib: float = 40.0, *, gpu: dict[str, Any] | None = None, **header: Any) -> Build:
    """One card, nothing on it yet."""
    build = Build(**header).gpu(limit_gib=limit_gib, **(gpu or {}))
    build.reading[0].update(utilization_ratio=0.0, memory_used_bytes=0.0, memory_reserved_bytes=0.6 * GIB)
    return build


def hold(build: Build, rest: float, peak: float, reserved: float | None = None, others: float = 0.0, **more: Any) -> Build:
    """What the allocator and the device say from now on, in GiB."""
    reserved = peak + 0.03 if reserved is None else reserved
    build.allocator[0].update(
        allocated_bytes=rest * GIB,
        active_bytes=rest * GIB,
        peak_allocated_bytes=peak * GIB,
        reserved_bytes=reserved * GIB,
        peak_reserved_bytes=reserved * GIB,
        **more,
    )
    total = next(e.memory_total_bytes for e in build.events if type(e).__name__ == "Gpu") or 0.0
    used = (reserved + CONTEXT + others) * GIB
    build.reading[0].update(utilization_ratio=0.95, memory_used_bytes=used, memory_free_bytes=max(0.0, total - 0.6 * GIB - used))
    return build


def course(build: Build, steps: int, at: Callable[[int], dict[str, Any]], step_s: float = 1.0, **fields: Any) -> Build:
    """Steps with an allocator line each; `at(step)` are the arguments of `hold`."""
    for _ in range(steps):
        hold(build, **at(build.step + 1))
        build.steps(1, step_s, allocator_every=1, **fields)
    return build


def flat(rest: float = 15.0, peak: float = 25.0, **more: Any) -> Callable[[int], dict[str, Any]]:
    return lambda step: {"rest": rest, "peak": peak, **more}


def fail(
    build: Build,
    requested: float = 1.0,
    *,
    reserved: float | None = None,
    phase: str | None = None,
    message: str | None = None,
    end: bool = True,
    **line: Any,
) -> Build:
    """An allocation fails: the allocator's line, the event with what is left after unwinding, the exception."""
    memory = dict(build.allocator[0])
    memory["ooms"] = (memory.get("ooms") or 0) + 1
    if reserved is not None:
        memory["reserved_bytes"] = memory["peak_reserved_bytes"] = reserved * GIB
    memory.update(line)
    memory.pop("peak_allocated_bytes")
    build.allocator[0]["ooms"] = memory["ooms"]
    build.events.append(Allocator(t_s=build.t, gpu=0, **memory))
    limit = next(e.memory_limit_bytes for e in build.events if type(e).__name__ == "Gpu")
    detail = {
        "gpu": 0,
        "requested_bytes": requested * GIB,
        "allocated_bytes": memory["allocated_bytes"],
        "reserved_bytes": memory["reserved_bytes"],
        "free_bytes": 0.1 * GIB,
        "total_bytes": limit,
    }
    if phase is not None:
        detail["phase"] = phase
    if message is not None:
        detail["message"] = message
    build.events.append(Event(t_s=build.t, event="oom", detail=detail))
    if end:
        build.wait(0.05).moment("exception", type="OutOfMemoryError")
    return build


def oom_predicted(peak_gib: float = 50.0) -> list[AnyEvent]:
    return card(budget={"memory_peak_bytes": peak_gib * GIB}).start().end("failed")


def optimizer_states(state_gib: float = 30.0, *, fit: bool = False) -> Build:
    """Micro-batches of the first step, then its optimizer phase."""
    build = card(budget={"optimizer_state_bytes": state_gib * GIB}).start()
    for _ in range(5):
        hold(build, 8.0, 15.0).wait(4.0)
        build.add(Allocator(gpu=0, at="sample", **build.allocator[0]))
    rest = 8.0 + state_gib
    hold(build, rest, rest + (7.0 if fit else 0.0))
    return build.steps(1, 1.0, allocator_every=1)


def leak(
    steps: int = 150,
    mib: float = 100.0,
    *,
    rest: float = 10.0,
    total: int | None = 1000,
    limit_gib: float = 40.0,
    step_s: float = 1.0,
) -> Build:
    build = card(limit_gib, budget={"steps_total": total} if total else None).start()
    return course(build, steps, lambda n: {"rest": rest + n * mib / 1024, "peak": rest + 5 + n * mib / 1024}, step_s)


def longest(steps: int = 60, *, known: float = 9000.0, fail_at: float | None = None) -> Build:
    """Peak = 10 GiB + 4 MiB a token; the longest sequence is known."""
    build = card(budget={"max_sequence_tokens": known, "steps_total": 1000}).start()
    for n in range(1, steps + 1):
        tokens = 1000.0 + 500.0 * (7 * n % 9)
        hold(build, 10.0, 10.0 + tokens * 4 / 1024, reserved=10.0 + 5000 * 4 / 1024 + 0.1)
        build.steps(1, 1.0, allocator_every=1, tokens=tokens, max_sequence_tokens=tokens, samples=1.0)
    if fail_at is not None:
        fail(build, 2.0, reserved=fail_at)
    return build


def oom_next_phase(gather_gib: float = 28.0) -> list[AnyEvent]:
    build = card(budget={"checkpoint_gather_bytes": gather_gib * GIB, "steps_total": 1000}).start()
    return course(build, 40, flat()).end("interrupted")


def evaluation(batches: int = 60, gib: float = 0.4, *, fail_it: bool = False) -> Build:
    """Training is flat; the evaluation keeps `gib` a batch, twice that while it concatenates."""
    build = course(card(budget={"steps_total": 1000}).start(), 30, flat())
    build.events.append(PhaseBegin(t_s=build.t, phase="eval", items_total=200.0))
    begin = build.t
    for batch in range(1, batches + 1):
        hold(build, 15.0 + batch * gib, min(15.0 + 2 * batch * gib, 39.4)).wait(1.0)
        build.events.append(Allocator(t_s=build.t, gpu=0, at="phase", **build.allocator[0]))
    if fail_it:
        return fail(build, 10.0, phase="eval")
    build.events.append(Phase(t_s=build.t, phase="eval", start_s=begin))
    return build


def fragmentation(steps: int = 200, *, fail_it: bool = False) -> Build:
    """What steps need stays the same; what is reserved ratchets up to the limit."""
    build = course(card().start(), steps, lambda n: {"rest": 15.0, "peak": 25.0, "reserved": min(25.0 + n * 0.1, 39.4)})
    return fail(build, 8.0) if fail_it else build


def flushes(steps: int = 40, per_step: int = 2) -> list[AnyEvent]:
    build = course(card().start(), 30, flat(15.0, 30.0))
    retries = [0]

    def at(step: int) -> dict[str, Any]:
        retries[0] += per_step
        return {"rest": 15.0, "peak": 36.0, "alloc_retries": retries[0]}

    return course(build, steps, at, step_s=4.0).end("interrupted")


def memory_over_budget(peak: float = 30.0) -> list[AnyEvent]:
    return course(card(budget={"memory_peak_bytes": 20 * GIB}).start(), 30, flat(15.0, peak)).end()


def foreign(gib: float = 4.0, *, busy: float = 0.9, fail_it: bool = False) -> Build:
    """Somebody holds memory, from the start (`busy` until we begin) or from the 40th step on."""
    build = course(card().start(), 40, flat(15.0, 30.0))
    build.reading[0]["utilization_ratio"] = busy
    course(build, 40, flat(15.0, 30.0, others=gib))
    return fail(build, 8.0) if fail_it else build


def stale(gib: float = 5.0, *, busy: float = 0.0) -> Build:
    build = card()
    build.reading[0].update(memory_used_bytes=gib * GIB, utilization_ratio=busy)
    return course(build.start(), 40, flat(15.0, 30.0, others=gib))


def siblings(parts: int = 3, part: float = 0.8, *, rows: bool = True, fail_it: bool = False) -> Build:
    build = card(world_size=4).start()
    held = [Process(pid=11, memory_bytes=30.5 * GIB), *(Process(pid=20 + i, memory_bytes=part * GIB) for i in range(parts))]
    if rows:
        build.reading[0]["processes"] = held
    for _ in range(8):
        if not rows:
            for rank in range(1, 4):
                build.add(Rank(rank=rank, memory_used_bytes=30.5 * GIB, state="running"))
        course(build, 5, flat(15.0, 30.0, others=parts * part))
    return fail(build, 8.5) if fail_it else build


def leftover(excess: float = 8.0, *, retry: bool = True) -> Build:
    """A second session: after an out-of-memory error (a retry), or a second call."""
    build = course(card().start(batch_size=32), 20, flat(15.0, 30.0))
    if retry:
        fail(build, 9.0, reserved=39.0, end=False)
    else:
        build.moment("train_end")
    build.step = 0
    build.wait(5.0).moment("train_begin", batch_size=16)
    return course(build, 30, flat(15.0 + excess, 25.0 + excess))


def resumed(excess: float = 6.0, **budget: float) -> Build:
    build = card(budget=budget or {"memory_peak_bytes": 20 * GIB}).start().moment("resume", step=1000)
    build.step = 1000
    return course(build, 30, flat(12.0 + excess, 20.0 + excess))


def spill(platform: str = "windows", *, slow: float = 4.0, retries: int = 0) -> list[AnyEvent]:
    build = course(card(24.0, platform=platform).start(), 30, flat(10.0, 20.0))
    course(build, 20, flat(10.0, 25.5, alloc_retries=retries), step_s=slow)
    return build.end("interrupted")


def host_growth(gib_per_step: float = 0.1, steps: int = 240, step_s: float = 5.0, **host: Any) -> list[AnyEvent]:
    """The children grow; the machine has 256 GiB."""
    build = course(card(budget={"steps_total": 5000}).start(), 10, flat(), step_s=step_s)
    for n in range(steps):
        grown = 100.0 + n * gib_per_step
        build.host.update({"children_rss_bytes": grown * GIB, "memory_available_bytes": (256.0 - 10.0 - grown) * GIB, **host})
        course(build, 1, flat(), step_s=step_s)
    return build.end("interrupted")


def saves(
    free_gib: float = 100.0, per_save: float = 15.0, count: int = 4, *, kept: int | None = None, **header: Any
) -> list[AnyEvent]:
    """A checkpoint every 50 steps; `kept` = old ones are deleted beyond that many."""
    build = course(card(budget={"steps_total": 1000}, **header).start(), 1, flat())
    build.host["disk_free_bytes"] = free_gib * GIB
    for place in range(count):
        course(build, 50, flat())
        begin = build.t
        build.events.append(PhaseBegin(t_s=begin, phase="save"))
        build.wait(5.0)
        taken = per_save * (place + 1 if kept is None else min(kept, place + 1))
        build.host["disk_free_bytes"] = (free_gib - taken) * GIB
        build.events.append(Phase(t_s=build.t, phase="save", start_s=begin))
        build.wait(12.0)
    return course(build, 20, flat()).end("interrupted")


def oom_in_save() -> list[AnyEvent]:
    build = course(card().start(), 30, flat(25.0, 32.0))
    build.events.append(PhaseBegin(t_s=build.t, phase="save"))
    for n in range(5):
        hold(build, 25.0 + 3 * n, 25.0 + 3 * n).wait(1.0)
        build.events.append(Allocator(t_s=build.t, gpu=0, at="phase", **build.allocator[0]))
    return fail(build, 1.0, phase="save").end("failed", train_end=False)


def true_capacity(requested: float = 2.0) -> list[AnyEvent]:
    build = course(card().start(), 12, flat(15.0, 38.5))
    return fail(build, requested, reserved=39.0).end("failed", train_end=False)


def pending_frees() -> list[AnyEvent]:
    build = course(card().start(), 12, flat(15.0, 25.0, reserved=39.0))
    hold(build, 15.0, 25.0, reserved=39.0)
    build.allocator[0]["active_bytes"] = 30.0 * GIB
    return fail(build, 4.0).end("failed", train_end=False)


def epoch_end() -> list[AnyEvent]:
    build = card().start().moment("epoch_begin", epoch=0)
    course(build, 30, flat(15.0, 38.0)).moment("epoch_end", epoch=0)
    return fail(build.wait(2.0), 3.0, reserved=39.0).end("failed", train_end=False)


def planned_longest() -> list[AnyEvent]:
    """The plan knows which step brings the longest batch, and what it needs."""
    build = card(budget={"steps_total": 1000})
    build.add(Plan(peak_by_tokens=[[1000, 14 * GIB], [9000, 46 * GIB]], longest=[LongBatch(step=400, tokens=9000)]))
    return course(build.start(), 30, flat()).end("interrupted")


def _ended(build: Build) -> list[AnyEvent]:
    return build.end("failed", train_end=False)


MINIMAL: dict[str, Callable[[], list[AnyEvent]]] = {
    "oom_predicted": oom_predicted,
    "oom_forecast": lambda: leak().end("interrupted"),
    "oom_next_phase": oom_next_phase,
    "memory_leak": lambda: leak().end("interrupted"),
    "memory_fragmentation": lambda: fragmentation().end("interrupted"),
    "memory_pressure": flushes,
    "memory_over_budget": memory_over_budget,
    "foreign_memory": lambda: foreign().end("interrupted"),
    "stale_holder": lambda: stale().end("interrupted"),
    "rank_extra_memory": lambda: siblings().end("interrupted"),
    "leftover_memory": lambda: leftover().end("interrupted"),
    "resume_excess": lambda: resumed().end("interrupted"),
    "eval_accumulation": lambda: evaluation().end("interrupted"),
    "system_memory_spill": spill,
    "host_memory_forecast": host_growth,
    "disk_forecast": saves,
    "oom/longest_batch": lambda: _ended(longest(fail_at=39.3)),
    "oom/leak": lambda: _ended(fail(leak(240), 1.0, reserved=39.0)),
    "oom/fragmentation": lambda: _ended(fragmentation(fail_it=True)),
    "oom/foreign_memory": lambda: _ended(foreign(fail_it=True)),
    "oom/optimizer_state": lambda: _ended(fail(optimizer_states(), 3.0, phase="backward")),
    "oom/eval_accumulation": lambda: _ended(evaluation(fail_it=True)),
    "oom/checkpoint_gather": oom_in_save,
    "oom/true_capacity": true_capacity,
    "oom/pending_stream_frees": pending_frees,
    "oom/epoch_end": epoch_end,
    "oom/sibling_ranks": lambda: _ended(siblings(fail_it=True)),
}
