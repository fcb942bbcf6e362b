"""A report as Prometheus text (format 0.0.4). Pure; about ten times cheaper than building client objects for each report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from trainbudget.catalog import METRICS, Histogram, Kind, MetricSpec, Snapshot, most_series, rank_label, run_label
from trainbudget.engine.report import Report

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: Labels every series begins with.
BASE = 2
AT_SCRAPE = tuple(spec for spec in METRICS if spec.at_scrape)
AT_REPORT = tuple(spec for spec in METRICS if not spec.at_scrape)


class Series(NamedTuple):
    """One line: the sample's name, its labels in order (`run` and `rank` first), its value. A tuple, for speed."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    spec: MetricSpec
    series: tuple[Series, ...]


def families(snapshot: Snapshot, metrics: Sequence[MetricSpec] = METRICS) -> Iterator[Family]:
    """The known series of each metric, `run` and `rank` first among the labels; a metric without any is left out."""
    header = snapshot.report.header
    base = (("run", run_label(header)), ("rank", rank_label(header)))
    for spec in metrics:
        series = tuple(_series(spec, snapshot, base))
        if series:
            yield Family(spec=spec, series=series)


def limited(found: Iterable[Family], most: int) -> tuple[list[Family], int]:
    """As many families as fit into `most` series, and how many series were left out. A histogram is never cut."""
    found_room: list[Family] = []
    dropped = 0
    for family in found:
        size = len(family.series)
        if size > most:
            fits = 0 if family.spec.kind is Kind.HISTOGRAM else max(0, most)
            dropped += size - fits
            family = Family(spec=family.spec, series=family.series[:fits])  # noqa: PLW2901 - the part that fits
        most -= len(family.series)
        if family.series:
            found_room.append(family)
    return found_room, dropped


def text_of(found: Iterable[Family]) -> str:
    """Families as text, help and type first."""
    out: list[str] = []
    base, base_text = None, ""
    for family in found:
        out.append(_HEADS[family.spec.stem])
        for name, labels, value in family.series:
            if labels[:BASE] != base:
                base = labels[:BASE]
                base_text = ",".join(f'{key}="{escape(text)}"' for key, text in base)
            more = "".join([f',{key}="{escape(text)}"' for key, text in labels[BASE:]])
            out.append(f"{name}{{{base_text}{more}}} {number(value)}\n")
    return "".join(out)


def kept(snapshot: Snapshot) -> tuple[list[Family], int]:
    """What does not change between two reports, within the limit of a process, and the number of series left out."""
    reserved = sum(len(f.series) for f in families(snapshot, AT_SCRAPE))
    return limited(families(snapshot, AT_REPORT), most_series(len(snapshot.report.gpus)) - reserved)


def body_of(report: Report, *, zero_unix_s: float, now_unix_s: float) -> tuple[str, int]:
    """Everything that does not change between two reports, as text, and the number of series left out."""
    found, dropped = kept(Snapshot(report=report, zero_unix_s=zero_unix_s, now_unix_s=now_unix_s))
    return text_of(found), dropped


def tail_of(snapshot: Snapshot) -> str:
    """The few lines that are computed when somebody asks: ages, and the cost of asking."""
    return text_of(families(snapshot, AT_SCRAPE))


def number(value: float) -> str:
    """Integers without a point, everything else as the shortest text that reads back the same."""
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


def escape(text: str) -> str:
    """A label value as the format wants it."""
    if "\\" in text or '"' in text or "\n" in text:
        return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
    return text


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _series(spec: MetricSpec, snapshot: Snapshot, base: tuple[tuple[str, str], ...]) -> Iterator[Series]:
    if spec.read_histogram is not None:
        histogram = spec.read_histogram(snapshot)
        if histogram is not None:
            yield from _buckets(spec.name, histogram, base)
        return
    for values, value in spec.samples(snapshot):
        yield Series(name=spec.name, labels=base + tuple(zip(spec.labels, values, strict=True)), value=value)


def _buckets(name: str, histogram: Histogram, base: tuple[tuple[str, str], ...]) -> Iterator[Series]:
    bounds = [number(b) for b in histogram.bounds] + ["+Inf"]
    counts = list(accumulate(histogram.counts))
    for bound, count in zip(bounds, counts, strict=True):
        yield Series(name=f"{name}_bucket", labels=(*base, ("le", bound)), value=count)
    yield Series(name=f"{name}_sum", labels=base, value=histogram.total)
    yield Series(name=f"{name}_count", labels=base, value=counts[-1])


_HEADS = {spec.stem: f"# HELP {spec.name} {_escape_help(spec.help)}\n# TYPE {spec.name} {spec.kind.value}\n" for spec in METRICS}
