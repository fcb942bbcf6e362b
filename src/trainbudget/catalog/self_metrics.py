"""What the monitor says of itself: its cost, its errors, and the host it runs on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from trainbudget.catalog.labels import clean
from trainbudget.catalog.spec import Kind, MetricSpec, Read, Sample, Snapshot, Unit
from trainbudget.events import HostReading, Self

G, C = Kind.GAUGE, Kind.COUNTER


def _seconds(snapshot: Snapshot) -> Iterable[Sample]:
    own = snapshot.report.self_
    if own is not None:
        yield ("hook",), own.hook_s
        yield ("sample",), own.sample_s
        yield ("feed",), own.feed_s


def _errors(snapshot: Snapshot) -> Iterable[Sample]:
    own = snapshot.report.self_
    errors = own.errors if own is not None else None
    return [((clean(reason, most=40),), count) for reason, count in sorted((errors or {}).items())]


def _self(value: Callable[[Self], float | None]) -> Read:
    return lambda s: (((), value(s.report.self_)),) if s.report.self_ is not None else ()


def _host(value: Callable[[HostReading], float | None]) -> Read:
    return lambda s: (((), value(s.report.host)),) if s.report.host is not None else ()


def _sample_errors(snapshot: Snapshot) -> Iterable[Sample]:
    total: Counter[str] = Counter()
    for gpu in snapshot.report.gpus:
        total.update(gpu.errors_total)
    return [((clean(reason, most=40),), count) for reason, count in total.most_common()]


SELF_SECONDS = MetricSpec(
    stem="self_seconds_total",
    kind=C,
    unit=Unit.SECONDS,
    help="Seconds the monitor took: `hook` on the training thread; `sample`, `feed` on its own threads.",
    labels=("kind",),
    read=_seconds,
)
SELF_CPU = MetricSpec(
    stem="self_cpu_seconds_total",
    kind=C,
    unit=Unit.SECONDS,
    help="CPU seconds of the monitor's threads.",
    read=_self(lambda s: s.cpu_s),
)
SCRAPE_SECONDS = MetricSpec(
    stem="scrape_seconds_total",
    kind=C,
    unit=Unit.SECONDS,
    help="Seconds spent answering scrapes.",
    read=lambda s: (((), s.scrape_s),),
    at_scrape=True,
)
SELF_ERRORS = MetricSpec(
    stem="self_errors_total",
    kind=C,
    unit=Unit.COUNT,
    help="Errors of the monitor that were swallowed, by place.",
    labels=("reason",),
    read=_errors,
)
DROPPED = MetricSpec(
    stem="facts_dropped_total",
    kind=C,
    unit=Unit.COUNT,
    help="Facts that did not fit into the queue.",
    read=_self(lambda s: s.dropped),
)
SERIES_DROPPED = MetricSpec(
    stem="series_dropped",
    kind=G,
    unit=Unit.COUNT,
    help="Series left out to keep a process below 80 + 40 x GPUs.",
    read=lambda s: (((), s.dropped),),
    at_scrape=True,
)
SAMPLE_ERRORS = MetricSpec(
    stem="sample_errors_total",
    kind=C,
    unit=Unit.COUNT,
    help="Device queries that were answered with an error, by query.",
    labels=("reason",),
    read=_sample_errors,
)
HOST_RSS = MetricSpec(
    stem="host_process_memory_bytes",
    kind=G,
    unit=Unit.BYTES,
    help="Resident memory of the training process.",
    read=_host(lambda h: h.rss_bytes),
)
HOST_CHILDREN = MetricSpec(
    stem="host_workers_memory_bytes",
    kind=G,
    unit=Unit.BYTES,
    help="Resident memory of its child processes.",
    read=_host(lambda h: h.children_rss_bytes),
)
HOST_AVAILABLE = MetricSpec(
    stem="host_memory_available_bytes",
    kind=G,
    unit=Unit.BYTES,
    help="Host memory that can still be had.",
    read=_host(lambda h: h.memory_available_bytes),
)
HOST_CPU = MetricSpec(
    stem="host_cpu_ratio",
    kind=G,
    unit=Unit.RATIO,
    help="CPU load of the whole machine.",
    read=_host(lambda h: h.cpu_ratio),
)

SELF_METRICS = (SELF_SECONDS, SELF_CPU, SELF_ERRORS, DROPPED)
SCRAPE_METRICS = (SCRAPE_SECONDS, SERIES_DROPPED)
HOST_METRICS = (HOST_RSS, HOST_CHILDREN, HOST_AVAILABLE, HOST_CPU, SAMPLE_ERRORS)
