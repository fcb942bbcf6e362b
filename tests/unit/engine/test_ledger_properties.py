"""The ledger against another one that knows each second's owner: simple runs, laid out second by second."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainbudget.engine.engine import Engine
from trainbudget.events import AnyEvent, End, Event, Gpu, Header, Phase, PhaseBegin, Price, Reading, Step, Tick

#: One thing a run does, and for how many seconds.
PIECES = st.lists(
    st.one_of(
        st.tuples(st.just("steps"), st.integers(1, 12)),
        st.tuples(st.just("wait"), st.integers(1, 9)),
        st.tuples(st.just("eval"), st.integers(1, 40)),
        st.tuples(st.just("save"), st.integers(1, 20)),
        st.tuples(st.just("log"), st.integers(1, 3)),
        st.tuples(st.just("gap"), st.integers(1, 20)),
        st.tuples(st.just("stall"), st.integers(150, 400)),
    ),
    min_size=1,
    max_size=14,
)


class Run:
    """Writes facts and, beside them, the owner of each second."""

    def __init__(self, gpus: int, period_s: int) -> None:
        self.t, self.step, self.waited = 0, 0, 0
        self.gpus, self.period_s = gpus, period_s
        self.owners: list[str] = []
        self.events: list[AnyEvent] = [Header(sample_period_s=float(period_s), price=Price(per_gpu_hour=3600.0, currency="USD"))]
        self.events += [Gpu(gpu=i, owned=True, name="A100") for i in range(gpus)]

    def spend(self, seconds: int, owner: str, *, utilization: float = 1.0) -> None:
        for _ in range(seconds):
            self.t += 1
            self.owners.append(owner)
            if self.t % self.period_s == 0:
                self.events += [Reading(t_s=float(self.t), gpu=i, utilization_ratio=utilization) for i in range(self.gpus)]
        self.events.append(Tick(t_s=float(self.t)))

    def one_step(self, seconds: int = 1, owner: str = "compute") -> None:
        start = self.t
        self.spend(seconds, owner)
        self.step += 1
        # The GPU's own part of the wait is given, so that nothing has to be assumed.
        self.events.append(
            Step(
                t_s=float(self.t),
                step=self.step,
                start_s=float(start),
                data_wait_s=float(self.waited),
                data_wait_idle_s=float(self.waited),
            )
        )
        self.waited = 0

    def piece(self, what: str, seconds: int) -> None:
        if what == "steps":
            for _ in range(seconds):
                self.one_step()
        elif what == "wait":
            self.spend(seconds, "data_wait", utilization=0.0)
            self.waited = seconds
            self.one_step()
        elif what in ("eval", "save", "log"):
            begin = self.t
            self.events.append(PhaseBegin(t_s=float(begin), phase=what))
            self.spend(seconds, what)
            self.events.append(Phase(t_s=float(self.t), phase=what, start_s=float(begin)))
        elif what == "gap":
            self.spend(seconds, "other", utilization=0.0)
            self.one_step()
        elif what == "stall":
            self.spend(seconds, "stall", utilization=0.0)
            self.one_step(owner="stall_end")


def built(pieces: list[tuple[str, int]], gpus: int, period_s: int, startup_s: int) -> Run:
    run = Run(gpus, period_s)
    run.spend(startup_s, "startup")
    run.events.append(Event(t_s=float(run.t), event="train_begin"))
    for _ in range(12):
        run.one_step()
    for what, seconds in pieces:
        run.piece(what, seconds)
    run.one_step()
    run.events.append(Event(t_s=float(run.t), event="train_end"))
    run.events.append(End(t_s=float(run.t), outcome="finished"))
    return run


def fed(run: Run) -> Engine:
    engine = Engine()
    for event in run.events:
        engine.feed(event)
    return engine


@settings(max_examples=60, deadline=None)
@given(pieces=PIECES, gpus=st.integers(1, 4), period_s=st.sampled_from([1, 2, 5]), startup_s=st.integers(1, 200))
def test_every_second_has_its_owner(pieces, gpus, period_s, startup_s):
    run = built(pieces, gpus, period_s, startup_s)
    ledger = fed(run).ledger
    whole = run.t * gpus
    assert ledger.total_s == pytest.approx(whole, rel=1e-9)
    assert sum(ledger.cost.values()) == pytest.approx(whole, rel=1e-9)  # a GPU-second costs 1
    wanted = Counter(run.owners)
    # Nobody can tell at which second a wait for a step became a stall: what is before the limit is "other".
    loose = ("stall", "stall_end", "other")
    for bucket in ("startup", "compute", "data_wait", "eval", "save", "log"):
        slack = 1e-6 + wanted["stall_end"] * gpus
        assert ledger.seconds.get(bucket, 0.0) == pytest.approx(wanted[bucket] * gpus, abs=slack), (bucket, pieces)
    rest = sum(ledger.seconds.get(b, 0.0) for b in ("stall", "other"))
    assert rest == pytest.approx(sum(wanted[b] for b in loose) * gpus, abs=1e-6 + wanted["stall_end"] * gpus)
    if not any(what == "stall" for what, _ in pieces):
        assert "stall" not in ledger.seconds


@settings(max_examples=30, deadline=None)
@given(pieces=PIECES, cut=st.integers(1, 200))
def test_counters_never_fall_and_pending_is_the_rest(pieces, cut):
    run = built(pieces, 2, 1, 20)
    engine = Engine()
    before: dict[str, float] = {}
    for place, event in enumerate(run.events):
        engine.feed(event)
        if place % cut == 0:
            now = dict(engine.ledger.seconds)
            assert all(now.get(b, 0.0) >= s - 1e-9 for b, s in before.items())
            booked = engine.ledger.total_s + engine.ledger.pending_s * 2
            assert booked == pytest.approx(engine.timeline.wall_s() * max(1, len(engine.timeline.charged)), abs=1e-6)
            before = now


@settings(max_examples=20, deadline=None)
@given(pieces=PIECES, hole_s=st.integers(500, 90_000), at=st.integers(30, 200))
def test_a_suspend_is_no_time(pieces, hole_s, at):
    """Cut the record anywhere and let the clock jump: the seconds stay the same, the hole is reported."""
    run = built(pieces, 1, 1, 20)
    plain = fed(run)
    shifted = Engine()
    for event in built(pieces, 1, 1, 20).events:
        if event.t_s >= at:
            event.t_s += hole_s
            if getattr(event, "start_s", None) is not None:
                event.start_s += hole_s
        shifted.feed(event)
    if shifted.timeline.gaps_s == 0.0:
        return  # the run was over before
    assert shifted.timeline.gaps_s == pytest.approx(hole_s, abs=3.0)
    assert shifted.ledger.total_s == pytest.approx(plain.ledger.total_s, abs=4.0)


def test_a_gpu_that_never_works_is_idle_in_all_the_others_buckets():
    run = built([("steps", 60)], 2, 1, 30)
    for event in run.events:
        if isinstance(event, Reading) and event.gpu == 1:
            event.utilization_ratio = 0.0
    seconds = fed(run).ledger.seconds
    assert seconds["startup"] == pytest.approx(60.0)
    assert seconds["idle"] == pytest.approx(73.0, abs=25.0)  # known after 20 quiet readings
    assert sum(seconds.values()) == pytest.approx(run.t * 2)
