"""The trace format: what is written is what is read, damage costs the damaged line."""

from __future__ import annotations

import gzip
import json
import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainbudget.errors import TraceError
from trainbudget.events import KINDS, Bound, BudgetFact, Event, Header, Process, Reading, Step, Tick
from trainbudget.trace import TraceReader, decode, encode, read_trace, write_trace

_FLOATS = st.floats(allow_nan=False, width=64)


@given(
    step=st.integers(0, 10**9),
    t_s=st.floats(0, 1e9),
    loss=st.one_of(st.none(), _FLOATS),
    tokens=st.one_of(st.none(), st.floats(0, 1e12)),
)
@settings(max_examples=60, deadline=None)
def test_numbers_come_back_exactly(step, t_s, loss, tokens):
    fact = Step(t_s=t_s, step=step, loss=loss, tokens=tokens)
    assert decode(encode(fact)) == fact


@pytest.mark.parametrize(("value", "text"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")])
def test_what_json_has_no_word_for_travels_as_the_formats_strings(value, text):
    line = encode(Step(step=1, loss=value))
    assert json.loads(line)["loss"] == text
    back = decode(line).loss
    assert back == value or (math.isnan(value) and math.isnan(back))


def test_also_inside_of_other_values():
    line = encode(BudgetFact(step_time_s=Bound(value=1.0, high=math.inf)))
    assert json.loads(line)["step_time_s"]["high"] == "inf"
    assert decode(line).step_time_s.high == math.inf
    detail = json.loads(encode(Event(event="oom", detail={"a": math.nan, "b": [math.inf], "c": object})))["detail"]
    assert (detail["a"], detail["b"]) == ("nan", ["inf"])


def test_unknown_keys_and_kinds_are_no_error():
    assert decode(b'{"kind": "tick", "t_s": 1.5, "of_tomorrow": [1]}') == Tick(t_s=1.5)
    assert decode(b'{"kind": "of_tomorrow", "t_s": 1.5}') is None


@pytest.mark.parametrize("line", [b"{", b"[]", b'"x"', b'{"kind": "step", "step": "three"}', b'{"t_s": 1}', b"\xff\xfe", b"null"])
def test_what_is_no_fact_is_an_error(line):
    with pytest.raises(TraceError):
        decode(line)


def test_every_kind_has_its_name_first_and_comes_back():
    needed = {"step": 3, "gpu": 1, "rank": 2, "phase": "eval", "event": "gc", "code": "setting_unknown"}
    for name, kind in KINDS.items():
        required = {f.name for f in msgspec.structs.fields(kind) if f.required}
        fact = kind(t_s=2.0, **{k: v for k, v in needed.items() if k in required})
        line = encode(fact)
        assert line.startswith(f'{{"kind":"{name}"'.encode())
        assert decode(line) == fact


def test_unknown_is_absent_and_never_null_or_zero():
    assert json.loads(encode(Reading(t_s=1.0, gpu=0))) == {"kind": "reading", "t_s": 1.0, "gpu": 0}
    assert b"processes" in encode(Reading(gpu=0, processes=[Process(pid=1)]))


FACTS = [Header(run="r"), Step(t_s=1.0, step=1), Tick(t_s=6.0)]


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz", "anything"])
def test_files_of_both_kinds_are_read(tmp_path, name):
    write_trace(tmp_path / name, FACTS)
    assert list(read_trace(tmp_path / name)) == FACTS


def test_a_torn_last_line_is_tolerated(tmp_path):
    path = tmp_path / "trace.jsonl"
    write_trace(path, FACTS)
    path.write_bytes(path.read_bytes()[:-9])
    assert list(read_trace(path)) == FACTS[:2]


def test_a_torn_gz_gives_what_came_before(tmp_path):
    path = tmp_path / "trace.jsonl.gz"
    lines = b"".join(encode(f) + b"\n" for f in [FACTS[0], *(Step(t_s=float(n), step=n) for n in range(5000))])
    packed = gzip.compress(lines)
    path.write_bytes(packed[: len(packed) // 2])
    facts = list(read_trace(path))
    assert 10 < len(facts) < 5001
    assert facts[0] == FACTS[0]


def test_a_damaged_line_in_the_middle_is_skipped_and_counted(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(encode(FACTS[0]) + b"\n{broken\n\n" + encode(FACTS[2]) + b"\n")
    reader = TraceReader(path)
    assert list(reader) == [FACTS[0], FACTS[2]]
    assert reader.skipped == 1


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "empty"),
        (b"hello\n", "no header"),
        (encode(Tick(t_s=1.0)), "no header"),
        (b'{"kind": "header", "schema": "trainbudget.trace/9"}', "schema"),
        (b"\x89PNG\r\n\x1a\n", "no header"),
    ],
)
def test_foreign_files_are_refused_in_one_line(tmp_path, content, why):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=why) as caught:
        list(read_trace(path))
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_missing_files_and_empty_directories_are_refused(tmp_path):
    with pytest.raises(TraceError, match="no such trace"):
        read_trace(tmp_path / "nothing")
    with pytest.raises(TraceError, match="no trace in this directory"):
        read_trace(tmp_path)
