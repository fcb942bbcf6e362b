"""Traces as bytes: one fact to one JSON line and back. What is written by a live run is what replay reads."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from trainbudget.errors import TraceError
from trainbudget.events import KINDS, SCHEMA, AnyEvent, Header

_encoder = msgspec.json.Encoder()
# Lax mode reads the strings "nan", "inf" and "-inf" where a number is due.
_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent, strict=False)


class _Kind(msgspec.Struct):
    kind: str | None = None


_kind_decoder = msgspec.json.Decoder(_Kind)


def encode(event: AnyEvent) -> bytes:
    """One fact as one JSON line without its newline; non-finite numbers become the strings the format names."""
    for name in event.__struct_fields__:
        value = getattr(event, name)
        if (isinstance(value, float) and not math.isfinite(value)) or isinstance(value, (dict, list, msgspec.Struct)):
            return _encoder.encode(_finite(msgspec.to_builtins(event, enc_hook=str)))
    try:
        return _encoder.encode(event)
    except UnicodeEncodeError:  # text that is no UTF-8, such as a run name out of the environment
        return _encoder.encode(_finite(msgspec.to_builtins(event)))


def decode(line: bytes) -> AnyEvent | None:
    """The fact in one line, or None for a kind this version does not know.

    Raises:
        TraceError: the line is not a fact.
    """
    try:
        return _decoder.decode(line)
    except msgspec.ValidationError as err:
        try:
            kind = _kind_decoder.decode(line).kind
        except msgspec.DecodeError:
            kind = None
        if kind is not None and kind not in KINDS:
            return None
        raise TraceError(str(err)) from err
    except (msgspec.DecodeError, UnicodeDecodeError) as err:
        raise TraceError(str(err)) from err


class TraceReader:
    """Iterates over the facts of a trace file (`.jsonl`, `.gz` or a run directory that holds one).

    Unknown keys and kinds are ignored, a torn last line is tolerated, a damaged line in the middle is skipped and counted
    in `skipped`. The first line must be a header of this schema.

    Raises:
        TraceError: the file is missing, unreadable or not a trace.
    """

    def __init__(self, path: str | Path) -> None:
        self.paths = _files_of(Path(path))
        self.path = self.paths[0]
        self.skipped = 0

    def __iter__(self) -> Iterator[AnyEvent]:
        lines = (line for path in self.paths for line in _lines(path))
        first = next(lines, None)
        if first is None:
            raise TraceError(f"{self.path}: empty, not a trace")
        yield _header_of(first, self.path)
        for line in lines:
            if not line.strip():
                continue
            try:
                event = decode(line)
            except TraceError:
                self.skipped += 1
                continue
            if event is not None:
                yield event


def read_trace(path: str | Path) -> Iterator[AnyEvent]:
    """The facts of a trace, in file order. See `TraceReader`."""
    return iter(TraceReader(path))


def write_trace(path: str | Path, events: Iterable[AnyEvent]) -> None:
    """Write facts to a file at once (tests, tools); a live run uses `sinks.record`."""
    zipped = str(path).endswith(".gz")
    with gzip.open(path, "wb") if zipped else open(path, "wb") as file:
        for event in events:
            file.write(encode(event) + b"\n")


def _files_of(path: Path) -> list[Path]:
    """The file, or the parts of a run's directory, oldest first: trace.1.jsonl.gz, ..., trace.jsonl."""
    if not path.is_dir():
        if not path.exists():
            raise TraceError(f"{path}: no such trace")
        return [path]
    parts = {}
    for part in path.glob("trace.*.jsonl*"):
        number = part.name.split(".")[1]
        # A part being compressed stands there twice for a moment: the plain one is the whole one.
        if number.isdigit() and part.suffix in (".gz", ".jsonl") and (part.suffix == ".jsonl" or int(number) not in parts):
            parts[int(number)] = part
    found = [parts[number] for number in sorted(parts)]
    if (path / "trace.jsonl").exists():
        found.append(path / "trace.jsonl")
    if not found:
        raise TraceError(f"{path}: no trace in this directory")
    return found


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with open(path, "rb") as probe:
            zipped = probe.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if zipped else open(path, "rb") as file:
            yield from file
    except (EOFError, zlib.error):
        return  # a torn .gz: what was read so far stands
    except OSError as err:
        if isinstance(err, gzip.BadGzipFile):
            return
        raise TraceError(f"{path}: {err.strerror or err}") from err


def _header_of(line: bytes, path: Path) -> Header:
    try:
        header = decode(line)
    except TraceError as err:
        raise TraceError(f"{path}: not a trace, its first line is no header ({err})") from None
    if not isinstance(header, Header):
        raise TraceError(f"{path}: not a trace, its first line is no header")
    if header.schema != SCHEMA:
        raise TraceError(f"{path}: schema {header.schema!r}, this version reads {SCHEMA!r}")
    return header


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {_finite(str(k)): _finite(v) for k, v in value.items() if v is not None}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return value
