"""The record on disk: what is flushed survives, disks that fail cost facts and never the run."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from trainbudget.events import End, Event, Header, Reading, Step, Tick
from trainbudget.live.pipeline import Pipeline
from trainbudget.sinks.record import RecordInUse, RecordSink, TraceWriter, part_number
from trainbudget.trace import read_trace


def written(directory: Path) -> list:
    return list(read_trace(directory))


def fill(writer: TraceWriter, count: int, start: int = 1) -> None:
    for number in range(start, start + count):
        writer.write(Step(t_s=float(number), step=number, start_s=number - 0.5, loss=1.0 / number))
        writer.flush()


def test_what_is_flushed_is_on_disk_without_a_close(tmp_path):
    writer = TraceWriter(tmp_path)
    writer.write(Header(run="r"))
    fill(writer, 3)
    writer.write(Step(t_s=9.0, step=9))  # not flushed yet
    assert [f.step for f in written(tmp_path)[1:]] == [1, 2, 3]
    writer.close()
    assert [f.step for f in written(tmp_path)[1:]] == [1, 2, 3, 9]


def test_full_parts_are_compressed_and_read_as_one(tmp_path):
    writer = TraceWriter(tmp_path, part_bytes=500)
    writer.write(Header(run="r"))
    fill(writer, 60)
    writer.close()
    parts = sorted(path.name for path in tmp_path.iterdir())
    assert len([p for p in parts if p.endswith(".jsonl.gz")]) > 3
    assert not [p for p in parts if p.endswith(".tmp")]
    assert [f.step for f in written(tmp_path)[1:]] == list(range(1, 61))


def test_a_kill_while_a_part_is_compressed_loses_nothing(tmp_path):
    writer = TraceWriter(tmp_path, part_bytes=500)
    writer.write(Header(run="r"))
    fill(writer, 40)
    writer.close()
    packed = min(tmp_path.glob("trace.*.jsonl.gz"), key=part_number)
    plain = packed.with_suffix("")
    plain.write_bytes(gzip.decompress(packed.read_bytes()))
    packed.with_suffix(".gz.tmp").write_bytes(b"\x1f\x8bhalf")
    assert [f.step for f in written(tmp_path)[1:]] == list(range(1, 41))  # both there: the plain one counts, once
    packed.unlink()
    assert [f.step for f in written(tmp_path)[1:]] == list(range(1, 41))


def test_beyond_the_days_share_ordinary_facts_are_left_out_and_counted(tmp_path):
    day = [1000.0 * 86400]
    writer = TraceWriter(tmp_path, max_bytes=100, part_bytes=10**9, unix_s=lambda: day[0])
    writer.write(Header(run="r"))
    fill(writer, 50)
    writer.write(Event(t_s=60.0, event="oom"))
    assert writer.left_out > 0
    kept = sum(isinstance(f, Step) for f in written(tmp_path))
    assert kept + writer.left_out == 50
    for fact in (Reading(t_s=61.0, gpu=0), Tick(t_s=62.0)):
        writer.write(fact)
    left_out = writer.left_out
    writer.flush()
    assert written(tmp_path)[-1] == Event(t_s=60.0, event="oom")
    day[0] += 86400
    writer._size = 0  # a new day with a new part
    writer.write(Tick(t_s=63.0))
    assert writer.left_out == left_out
    writer.close()


def test_an_earlier_attempt_in_the_same_directory_is_kept(tmp_path):
    for number in (1, 2):
        writer = TraceWriter(tmp_path)
        writer.write(Header(run=f"attempt {number}"))
        writer.write(Step(t_s=1.0, step=number))
        writer.close()
    assert [f.step for f in written(tmp_path) if isinstance(f, Step)] == [1, 2]
    assert written(tmp_path)[0].run == "attempt 1"


def test_a_directory_in_use_is_refused_until_it_is_free(tmp_path):
    first = TraceWriter(tmp_path)
    with pytest.raises(RecordInUse):
        TraceWriter(tmp_path)
    first.close()
    TraceWriter(tmp_path).close()


def test_an_abandoned_writer_writes_nothing_any_more(tmp_path):
    writer = TraceWriter(tmp_path)
    writer.write(Header(run="r"))
    writer.abandon()
    writer.write(Tick(t_s=1.0))
    writer.flush()
    writer.close()
    assert (tmp_path / "trace.jsonl").read_bytes() == b""


class Refusing:
    """A file that takes so many bytes and then none."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def write(self, data):
        if self.room <= 0:
            raise OSError(28, "No space left on device")
        taken = self.file.write(bytes(data[: self.room]))
        self.room -= taken
        return taken

    def __getattr__(self, name):
        return getattr(self.file, name)


def test_a_full_disk_tears_no_line_and_what_it_refused_comes_later(tmp_path):
    writer = TraceWriter(tmp_path)
    writer.write(Header(run="r"))
    writer.flush()
    real = writer._file
    writer._file = Refusing(real, room=30)
    writer.write(Step(t_s=1.0, step=1, loss=0.123456789))
    with pytest.raises(OSError, match="No space"):
        writer.flush()
    writer.write(Step(t_s=2.0, step=2))
    with pytest.raises(OSError, match="No space"):
        writer.flush()
    writer._file = real
    writer.close()
    assert [f.step for f in written(tmp_path)[1:]] == [1, 2]


def test_memory_is_bounded_while_a_disk_refuses(tmp_path):
    writer = TraceWriter(tmp_path)
    writer._file = Refusing(writer._file, room=0)
    message = {"message": "x" * 10_000}
    for number in range(200):
        writer.write(Event(t_s=float(number), event="exception", detail=message))
    assert writer.left_out > 0
    assert len(writer._pending) < 1.1 * 1024**2
    with pytest.raises(OSError, match="No space"):
        writer.close()


def test_a_directory_that_vanishes_is_made_again_with_a_readable_trace(tmp_path):
    directory = tmp_path / "run"
    writer = TraceWriter(directory)
    writer.write(Header(run="r"))
    fill(writer, 2)
    (directory / "trace.jsonl").unlink()
    directory.rmdir()
    fill(writer, 2, start=3)
    writer.close()
    facts = written(directory)
    assert facts[0].run == "r"
    assert [f.step for f in facts[1:]] == [3, 4]


def test_a_place_that_takes_no_files_is_an_error_of_its_own_kind():
    with pytest.raises(OSError, match="/proc/trainbudget"):  # read-only for everybody, root included
        TraceWriter(Path("/proc/trainbudget"))


def test_a_file_in_the_way_is_an_error_of_its_own_kind(tmp_path):
    (tmp_path / "run").write_text("in the way")
    with pytest.raises(OSError, match=r"exists|Not a directory"):
        TraceWriter(tmp_path / "run")


def report_after(*facts):
    pipeline = Pipeline()
    for fact in facts:
        pipeline.feed(fact)
    return pipeline.publish()


def test_the_summary_is_written_now_and_then_and_at_the_end(tmp_path):
    sink = RecordSink(tmp_path, every_s=30.0)
    path = tmp_path / "summary.json"
    sink.write(report_after(Header(run="r"), Tick(t_s=1.0)), (), ())
    assert json.loads(path.read_text())["run"] == "r"
    path.unlink()
    sink.write(report_after(Header(run="r"), Tick(t_s=20.0)), (), ())
    assert not path.exists()
    sink.write(report_after(Header(run="r"), Tick(t_s=20.0), End(t_s=21.0, outcome="finished")), (), ())
    assert json.loads(path.read_text())["outcome"] == "finished"
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]
