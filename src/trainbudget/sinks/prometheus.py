"""The exporter: the body is made once a report by the thread that writes it, a scrape only adds the ages and sends it."""

from __future__ import annotations

import html
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from trainbudget.catalog import Kind, MetricSpec, Snapshot, rank_label, run_label
from trainbudget.clock import Clock, SystemClock
from trainbudget.config import Listen, parse_listen
from trainbudget.engine.report import Report
from trainbudget.errors import ConfigError
from trainbudget.findings import Finding
from trainbudget.sinks.exposition import AT_SCRAPE, CONTENT_TYPE, Family, body_of, families, kept, tail_of
from trainbudget.sinks.http_server import Page, ReadOnlyServer
from trainbudget.sinks.zero import ZeroPoint


class PrometheusSink:
    """Serves `/metrics`, and `pages` beside it.

    Args:
        listen: `"host:port"`, `"off"`, a `Listen`, or None for 127.0.0.1:9837. Local rank n begins n ports later.
        strict: the port must be free (`ConfigError` otherwise); else the next free one is taken and `notice` says so.
        pages: further read-only pages, by path.

    Attributes:
        url: where it listens, or None.
        notice: one line about a port that was not the wanted one, or about none at all; else None.
        registry: a registry of our own that yields the newest report, for an application with an exporter of its own.
    """

    name = "prometheus"

    def __init__(
        self,
        listen: str | Listen | None = None,
        *,
        local_rank: int = 0,
        strict: bool = False,
        clock: Clock | None = None,
        pages: Mapping[str, Callable[[], Page]] | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._zero = ZeroPoint()
        self._state: tuple[Report, float, bytes, int] | None = None  # swapped as one reference
        self._scrape_s = 0.0
        self._counting = threading.Lock()
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(ReportCollector(self._snapshot))
        self.notice: str | None = None
        self._server = self._serve(listen, local_rank, strict, {"/": self._index, "/metrics": self._metrics, **(pages or {})})
        self._pages = sorted({"/metrics", *(pages or {})})

    @property
    def url(self) -> str | None:
        return self._server.url if self._server is not None else None

    @property
    def port(self) -> int | None:
        return self._server.port if self._server is not None else None

    def write(self, report: Report, raised: Sequence[Finding], cleared: Sequence[Finding]) -> None:
        """Render `report` and swap it in; scrapes that are under way keep the old one."""
        now_s = self._clock.unix_s()
        zero_s = self._zero.of(report.t_s, now_s)
        body, dropped = body_of(report, zero_unix_s=zero_s, now_unix_s=now_s)
        self._state = (report, zero_s, body.encode("utf-8", "replace"), dropped)

    def body(self) -> bytes:
        """What a scrape gets now: empty before the first report."""
        started_s = time.perf_counter()
        state, snapshot = self._state, self._snapshot()
        if state is None or snapshot is None:
            return b""
        out = state[2] + tail_of(snapshot).encode("utf-8", "replace")
        with self._counting:
            self._scrape_s += time.perf_counter() - started_s
        return out

    def close(self) -> None:
        """Free the port. May be called twice."""
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def _serve(
        self, listen: str | Listen | None, local_rank: int, strict: bool, pages: dict[str, Callable[[], Page]]
    ) -> ReadOnlyServer | None:
        where = Listen() if listen is None else parse_listen(listen) if isinstance(listen, str) else listen
        if where is None:
            return None
        if where.port and local_rank:
            where = Listen(host=where.host, port=where.port + local_rank)
        try:
            server = ReadOnlyServer(where, pages, strict=strict, name="trainbudget-exporter")
        except ConfigError as err:
            if strict:
                raise
            self.notice = f"no metrics page: {err}"
            return None
        if server.moved:
            self.notice = f"port {where.port} is taken, metrics are at {server.url}/metrics"
        return server

    def _snapshot(self) -> Snapshot | None:
        state = self._state
        if state is None:
            return None
        report, zero_s, _, dropped = state
        return Snapshot(
            report=report, zero_unix_s=zero_s, now_unix_s=self._clock.unix_s(), scrape_s=self._scrape_s, dropped=dropped
        )

    def _metrics(self) -> Page:
        return Page(content_type=CONTENT_TYPE, body=self.body())

    def _index(self) -> Page:
        state = self._state
        who = "no report yet" if state is None else f"{run_label(state[0].header)} rank {rank_label(state[0].header)}"
        links = " ".join(f'<a href="{html.escape(path)}">{html.escape(path)}</a>' for path in self._pages)
        text = f"<!doctype html><meta charset=utf-8><title>trainbudget</title><p>trainbudget: {html.escape(who)} {links}</p>\n"
        return Page(content_type="text/html; charset=utf-8", body=text.encode("utf-8", "replace"))


class ReportCollector:
    """The catalogue as prometheus_client families."""

    def __init__(self, snapshot: Callable[[], Snapshot | None]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        snapshot = self._snapshot()
        if snapshot is not None:
            found, _ = kept(snapshot)
            for family in (*found, *families(snapshot, AT_SCRAPE)):
                yield _client_family(family)


def _client_family(family: Family) -> Metric:
    spec = family.spec
    metric = _FAMILIES[spec.kind](spec)
    for series in family.series:
        metric.add_sample(series.name, dict(series.labels), series.value)
    return metric


def _labels(spec: MetricSpec) -> tuple[str, ...]:
    return ("run", "rank", *spec.labels)


_FAMILIES: dict[Kind, Callable[[MetricSpec], Metric]] = {
    Kind.GAUGE: lambda s: GaugeMetricFamily(s.name, s.help, labels=_labels(s)),
    Kind.COUNTER: lambda s: CounterMetricFamily(s.name, s.help, labels=_labels(s)),
    Kind.HISTOGRAM: lambda s: HistogramMetricFamily(s.name, s.help, labels=_labels(s)),
}
