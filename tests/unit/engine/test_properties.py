"""Whatever comes in: no exception, a ledger that sums, findings that are JSON, and the same answer every time."""

from __future__ import annotations

import json
import math
import os
import random
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainbudget import events
from trainbudget.engine.engine import Engine
from trainbudget.engine.summary import replay_json
from trainbudget.events import (
    PHASES,
    Allocator,
    AnyEvent,
    BackendError,
    Bound,
    BudgetFact,
    End,
    Event,
    Gpu,
    Header,
    Host,
    HostReading,
    Lint,
    LongBatch,
    Model,
    Phase,
    PhaseBegin,
    Plan,
    Price,
    Process,
    Progress,
    Rank,
    Reading,
    Self,
    Step,
    Tick,
)
from trainbudget.trace import decode, encode
from unit.engine.traces import Build

#: Numbers as they come from broken counters, drivers and losses.
ODD = st.sampled_from([0.0, 1.0, -1.0, 0.5, 1e-9, 1e9, 1e18, math.nan, math.inf, -math.inf])
NUMBERS = st.one_of(st.none(), ODD, st.floats(0.0, 1e3), st.floats(allow_nan=True, allow_infinity=True, width=32))
WHOLES = st.one_of(st.none(), st.integers(-5, 2**63 - 1), st.integers(0, 20))
WORDS = st.one_of(st.none(), st.sampled_from(["", "cpu", "huggingface", "float32", "bf16", "no", "8.0", "x.y", "running", "wsl"]))
CODES = st.sampled_from([1, 3, 4, 13, 15, 16, 28, 999])
QUERIES = st.sampled_from(["init", "handle", "utilization", "memory", "power", "temperature", "processes", "ecc"])
JSON = st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.sampled_from(["no", "steps", 16]), st.floats(0, 10))
DETAILS = st.dictionaries(
    st.sampled_from(
        ["batch_size", "attempt", "step", "highest_step", "cost_before", "gpu", "requested_bytes", "message", "xid", "duration_s"]
    ),
    st.one_of(JSON, st.lists(st.integers(), max_size=2), st.sampled_from([math.nan, math.inf])),
    max_size=4,
)
SETTINGS = st.dictionaries(
    st.sampled_from(
        [
            "bf16",
            "fp16",
            "precision",
            "deepspeed",
            "fsdp",
            "fsdp_config",
            "strategy",
            "optim",
            "gradient_checkpointing",
            "gradient_accumulation_steps",
            "per_device_train_batch_size",
            "eval_strategy",
            "dataloader_num_workers",
        ]
    ),
    st.one_of(JSON, st.just({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}), st.just({"cpu_offload": True})),
    max_size=5,
)
BOUNDS = st.one_of(NUMBERS, st.builds(Bound, value=st.floats(allow_nan=True), low=NUMBERS, high=NUMBERS))
INDEX = st.integers(0, 2)

#: Fields that need more than their type says.
SPECIAL: dict[str, Any] = {
    "gpu": INDEX,
    "rank": st.integers(0, 3),
    "phase": st.sampled_from([*PHASES, "other"]),
    "event": st.sampled_from(
        ["train_begin", "train_end", "epoch_begin", "epoch_end", "resume", "oom", "exception", "interrupt", "gc", "xid", "new"]
    ),
    "detail": st.one_of(st.none(), DETAILS),
    "step": st.integers(0, 400),
    "code": st.sampled_from(["setting_unknown", "setting_renamed", "something"]),
    "errors": st.one_of(st.none(), st.dictionaries(QUERIES, CODES, max_size=4)),
    "processes": st.one_of(st.none(), st.lists(st.builds(Process, pid=WHOLES, memory_bytes=NUMBERS, own=st.none()), max_size=3)),
    "throttle": st.one_of(st.none(), st.lists(st.sampled_from(["gpu_idle", "hw_slowdown", "sw_power_cap"]), max_size=2)),
    "peak_flops": st.one_of(st.none(), st.dictionaries(st.sampled_from(["bf16", "fp32"]), st.floats(0, 1e15), max_size=2)),
    "settings": st.one_of(st.none(), SETTINGS),
    "environment": st.none(),
    "ignore": st.none(),
    "thresholds": st.none(),
    "host": st.one_of(st.none(), st.builds(Host, platform=WORDS, cpu_count=st.integers(1, 64), interactive=st.booleans())),
    "backend_error": st.one_of(st.none(), st.builds(BackendError, code=st.one_of(WORDS, CODES), text=WORDS)),
    "count": st.one_of(st.none(), st.integers(-1, 50)),
    "world_size": st.one_of(st.none(), st.integers(-1, 4)),
    "peak_by_tokens": st.one_of(st.none(), st.lists(st.lists(st.floats(0, 1e12), min_size=0, max_size=4), max_size=4)),
    "longest": st.one_of(
        st.none(), st.lists(st.builds(LongBatch, step=st.integers(0, 500), tokens=st.floats(0, 1e6)), max_size=3)
    ),
    "phase_peaks": st.one_of(st.none(), st.dictionaries(st.sampled_from(PHASES), st.floats(0, 1e12), max_size=3)),
    "currency": st.sampled_from([None, "USD", "EUR"]),
    "outcome": st.sampled_from([None, "finished", "failed", "interrupted", "stopped"]),
    "spot": st.sampled_from([None, True, False]),
}
KINDS = (
    BudgetFact,
    Price,
    Model,
    Plan,
    Gpu,
    Reading,
    Reading,
    Reading,
    Allocator,
    Allocator,
    Step,
    Step,
    Step,
    Step,
    PhaseBegin,
    Phase,
    Progress,
    Event,
    Event,
    HostReading,
    Rank,
    Lint,
    Self,
    Tick,
)


def field_strategy(kind: type, field: msgspec.structs.FieldInfo) -> st.SearchStrategy[Any]:
    if field.name in SPECIAL:
        return SPECIAL[field.name]
    text = str(field.type)
    if kind is BudgetFact and field.name not in ("source",):
        return BOUNDS
    if "bool" in text:
        return st.sampled_from([None, True, False])
    if "int" in text and "float" not in text:
        return WHOLES
    if "float" in text:
        return NUMBERS
    return WORDS


@st.composite
def facts(draw: Any, kind: type) -> AnyEvent:
    fields = {}
    for field in msgspec.structs.fields(kind):
        if field.name in ("t_s", "kind", "schema", "budget", "price", "sample_period_s", "process_started_s"):
            continue
        required = field.required
        # Optional fields are mostly absent: that is what real lines look like.
        if required or draw(st.integers(0, 2)) > 0:
            value = draw(field_strategy(kind, field))
            if value is None and required:
                value = 0
            fields[field.name] = value
    return kind(**fields)


SEEDS = st.integers(0, 2**32 - 1)
ANY = st.sampled_from(KINDS).flatmap(facts)
#: Steps of time between lines: usual ones, none at all, back, suspends, and no number.
DELTAS = st.one_of(st.floats(0.0, 3.0), st.sampled_from([0.0, 0.3, 10.0, 130.0, 700.0, 4000.0, -5.0, -1e6, math.nan, 1e7]))
RANDOM = settings(
    max_examples=int(os.environ.get("TRAINBUDGET_TEST_EXAMPLES", "40")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)


def check(engine: Engine) -> None:
    """What holds for every engine at every moment."""
    ledger, timeline = engine.ledger, engine.timeline
    assert all(s >= 0.0 and math.isfinite(s) for s in ledger.seconds.values()), ledger.seconds
    json.dumps(replay_json(engine.report()), allow_nan=False)
    for finding in engine.findings:
        assert finding.raised_s <= timeline.now_s
        assert finding.cleared_s is None or finding.cleared_s >= finding.raised_s


@RANDOM
@given(
    header=facts(Header),
    lines=st.lists(st.tuples(ANY, DELTAS, st.one_of(st.none(), DELTAS)), min_size=5, max_size=80),
)
def test_anything_in_any_order(header, lines):
    engine = Engine()
    engine.feed(header)
    t_s = 0.0
    for event, ahead, back in lines:
        t_s = t_s + ahead if math.isfinite(ahead) else t_s
        event.t_s = t_s if math.isfinite(ahead) else math.nan
        if back is not None and isinstance(event, (Step, Phase)):
            event.start_s = t_s - abs(back) if math.isfinite(back) else back
        engine.feed(event)
    check(engine)
    engine.feed(End(t_s=max(t_s, engine.timeline.now_s), outcome="failed"))
    check(engine)
    assert engine.ledger.pending_s < 1e-6


def a_run(gpus: int = 1) -> list[AnyEvent]:
    """A run in which every kind of fact occurs, with nearly every field of it given."""
    build = Build(
        settings={"bf16": True, "dataloader_num_workers": 2, "gradient_checkpointing": True},
        budget={"cost": 5.0, "steps_total": 120, "step_time_s": 1.0, "memory_peak_bytes": 60e9, "run_time_s": 900.0},
        environment={"float32_matmul_precision": "high"},
        world_size=2,
        process_started_s=-3.0,
        pid=77,
        driver_version="570.1",
        started_at="2026-01-01T00:00:00Z",
        backend="nvml",
    )
    build.model(
        parameters=1e9, trainable_parameters=1e9, attention="sdpa", parameter_dtype="float32", autocast="bf16", vocab_size=32000
    )
    for index in range(gpus):
        build.gpu(index, peak_flops={"bf16": 312e12}, memory_limit_source="torch", visible=True, unified_memory=False)
        build.reading[index].update(
            memory_reserved_bytes=5e8,
            context_bytes=4e8,
            memory_utilization_ratio=0.5,
            sm_active_ratio=0.9,
            tensor_active_ratio=0.4,
            energy_j=1e5,
            throttle=["sw_power_cap"],
            ecc_corrected=1.0,
            ecc_uncorrected=0.0,
            processes=[Process(pid=77, memory_bytes=5e10, own=True, alive=True, started_before_run=False)],
            count=1,
        )
        build.allocator[index].update(active_bytes=3e10, inactive_split_bytes=1e8, peak_since="process")
    build.host.update(
        children_rss_bytes=1e9,
        process_cpu_ratio=1.0,
        children_cpu_ratio=2.0,
        io_wait_ratio=0.01,
        read_bytes_per_s=1e8,
        shm_free_bytes=1e10,
        disk_free_bytes=1e12,
    )
    build.add(
        Plan(
            t_s=build.t,
            peak_by_tokens=[[512.0, 3e10, 2.9e10, 3.1e10], [2048.0, 5e10, 4.8e10, 5.2e10]],
            longest=[LongBatch(step=80, tokens=2048.0)],
            phase_peaks={"eval": 4e10},
        ),
        Price(t_s=build.t, per_gpu_hour=2.0, currency="USD", source="given", date="2026-01-01", spot=False),
        BudgetFact(t_s=build.t, tokens_per_s=100.0, flops_per_step=1e14, currency="USD", source="learned"),
        Lint(t_s=build.t, code="setting_renamed", setting="a", suggestion="b"),
    )
    build.phase("load", 5.0, items_done=3.0, items_total=3.0).start(5.0, batch_size=8, attempt=1)
    usual = {"tokens": 100.0, "useful_tokens": 90.0, "samples": 8.0, "micro_steps": 2, "max_sequence_tokens": 512.0}
    split = {"forward_s": 0.3, "backward_s": 0.6, "optimizer_s": 0.05, "communication_s": 0.05, "pre_collective_s": 0.5}
    build.steps(30, loss=2.0, grad_norm=1.0, gpu_busy_s=0.95, loader_wait_s=0.01, data_wait_idle_s=0.005, **usual, **split)
    build.add(Progress(t_s=build.t, phase="eval", items_done=1.0, items_total=4.0, recompiles=1.0))
    build.moment("epoch_begin").phase("eval", 10.0, items_done=4.0, recompiles=1.0).steps(30, **usual).phase("save", 5.0)
    build.add(
        Rank(
            t_s=build.t,
            rank=1,
            pid=78,
            uuid="GPU-9",
            step=60,
            step_time_s=1.0,
            data_wait_s=0.01,
            loader_wait_s=0.01,
            pre_collective_s=0.5,
            memory_used_bytes=5e10,
            power_w=300.0,
            sm_clock_hz=1.4e9,
            utilization_ratio=0.9,
            gpu_seconds=90.0,
            cost=0.05,
            state="running",
        ),
        Self(t_s=build.t, hook_s=0.01, sample_s=0.1, feed_s=0.1, cpu_s=0.5, dropped=0, merged=0, errors={"x": 1}),
        Tick(t_s=build.t),
    )
    build.moment("gc", generation=2, duration_s=0.2).steps(
        30, fields=lambda n: {"count": 1, "skipped": False, "step_s": 1.0}
    ).moment("epoch_end")
    return build.end()


def total(engine: Engine) -> float:
    return (engine.timeline.wall_s() - engine.timeline.started_s) * max(1, len(engine.timeline.charged))


@settings(RANDOM, max_examples=12)
@given(seed=SEEDS)
def test_any_optional_field_may_be_missing(seed):
    """Every fact of a real run with some of its optional fields unknown: nothing breaks, every second is booked."""
    dice = random.Random(seed)
    engine = Engine()
    for event in a_run():
        optional = [f for f in msgspec.structs.fields(type(event)) if not f.required and f.name not in ("t_s", "schema")]
        drop = {f.name: None for f in optional if dice.random() < 0.25}
        engine.feed(msgspec.structs.replace(event, **drop))
    check(engine)
    assert engine.ledger.total_s == pytest.approx(total(engine), rel=1e-6)


def test_each_optional_field_missing_alone():
    """The exhaustive half: for each kind and each optional field, that field missing in all lines of the kind."""
    kinds = {type(e) for e in a_run()}
    assert kinds == set(events.KINDS.values())
    for kind in kinds:
        for field in msgspec.structs.fields(kind):
            if field.required or field.name in ("t_s", "schema"):
                continue
            engine = Engine()
            for event in a_run():
                engine.feed(msgspec.structs.replace(event, **{field.name: None}) if type(event) is kind else event)
            check(engine)
            assert abs(engine.ledger.total_s - total(engine)) < 1e-6 * total(engine), (kind, field.name)


@RANDOM
@given(at=st.integers(2, 500), code=CODES, back=st.one_of(st.none(), st.integers(1, 300)), gpus=st.integers(1, 3))
def test_a_device_may_be_lost_at_any_time(at, code, back, gpus):
    engine = Engine()
    for place, event in enumerate(a_run(gpus)):
        lost = place >= at and (back is None or place < at + back)
        if isinstance(event, Reading) and event.gpu == 0 and lost:
            engine.feed(Reading(t_s=event.t_s, gpu=0, errors={"handle": code, "utilization": code, "memory": code}))
        else:
            engine.feed(event)
    check(engine)
    assert abs(engine.ledger.total_s - total(engine)) < 1e-6 * total(engine)


@RANDOM
@given(seed=SEEDS)
def test_lost_doubled_and_swapped_lines_keep_the_sum(seed):
    """Hooks that fire twice, not at all, or in another order: every second is still booked exactly once."""
    dice = random.Random(seed)
    header, *body, end = a_run(1 + seed % 2)
    out = [event for event in body for _ in range(dice.choice([0, 1, 1, 1, 1, 1, 2]))]
    for place in (dice.randrange(len(out) - 1) for _ in range(dice.randrange(20))):
        out[place], out[place + 1] = out[place + 1], out[place]
    engine = Engine()
    for event in [header, *out, end]:
        engine.feed(event)
    check(engine)
    assert abs(engine.ledger.total_s - total(engine)) < 1e-6 * max(1.0, total(engine)), (engine.ledger.seconds, total(engine))


def test_replay_says_what_the_live_run_said():
    """Through the codec and back, in two engines: the same findings, the same ledger, to the last digit."""
    lines = a_run(2)
    first, second = Engine(), Engine()
    for event in lines:
        line = encode(event)
        first.feed(event)
        again = decode(line)
        assert again is not None
        second.feed(again)
    assert first.ledger.seconds == second.ledger.seconds
    assert first.findings == second.findings
    assert replay_json(first.report()) == replay_json(second.report())


def test_the_header_is_not_changed_by_feeding():
    lines = a_run()
    before = [encode(e) for e in lines]
    for _ in range(2):
        engine = Engine()
        for event in lines:
            engine.feed(event)
    assert [encode(e) for e in lines] == before


def test_all_kinds_are_tried():
    assert set(KINDS) | {Header, End} == set(events.KINDS.values())
