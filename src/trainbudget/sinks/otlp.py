"""OTLP metrics over HTTP: the catalogue as OpenTelemetry data, sent by an exporter of its own, no global provider touched."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from trainbudget.catalog import Kind, MetricSpec, Snapshot, Unit, rank_label, run_label
from trainbudget.clock import Clock, SystemClock
from trainbudget.engine.report import Report
from trainbudget.errors import ConfigError
from trainbudget.findings import Finding
from trainbudget.sinks.background import Background
from trainbudget.sinks.exposition import AT_SCRAPE, Family, families, kept
from trainbudget.sinks.zero import ZeroPoint

PERIOD_S = 15.0
TIMEOUT_S = 5.0
#: UCUM units; what has none stays without, or a receiver would append "_ratio" to a plain count.
_UNITS = {
    Unit.SECONDS: "s",
    Unit.TIMESTAMP: "s",
    Unit.BYTES: "By",
    Unit.WATTS: "W",
    Unit.JOULES: "J",
    Unit.CELSIUS: "Cel",
    Unit.HERTZ: "Hz",
    Unit.RATIO: "1",
}
#: The protocol leaves them out where they are not known; the SDK's types do not know that.
_UNKNOWN: Any = None


class OtlpSink:
    """Sends every report at most every `period_s`, and the last one on close.

    Args:
        endpoint: `http://host:4318/v1/metrics`; None = the OTEL_EXPORTER_OTLP_* variables.

    Raises:
        ConfigError: the exporter is not installed.
    """

    name = "otlp"

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        headers: dict[str, str] | None = None,
        period_s: float = PERIOD_S,
        clock: Clock | None = None,
    ) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        except ImportError as err:
            raise ConfigError("otlp: the exporter is not installed; pip install 'trainbudget[otlp]'") from err
        self._exporter = OTLPMetricExporter(endpoint=endpoint, headers=headers, timeout=TIMEOUT_S)
        self._clock = clock or SystemClock()
        self._period_s = period_s
        self._zero = ZeroPoint()
        self._sender = Background(self.name)
        self._next_s = 0.0
        self._latest: Report | None = None
        self._sent: Report | None = None

    @property
    def errors(self) -> int:
        return self._sender.errors

    def write(self, report: Report, raised: Sequence[Finding], cleared: Sequence[Finding]) -> None:
        self._latest = report
        now_s = self._clock.now_s()
        if now_s < self._next_s and not raised and not cleared:
            return
        self._next_s = now_s + self._period_s
        self._submit(report)

    def close(self) -> None:
        if self._latest is not None and self._latest is not self._sent:
            self._submit(self._latest)
        self._sender.close()
        self._exporter.shutdown(timeout_millis=1000)

    def _submit(self, report: Report) -> None:
        self._sent = report
        now_s = self._clock.unix_s()
        snapshot = Snapshot(report=report, zero_unix_s=self._zero.of(report.t_s, now_s), now_unix_s=now_s)
        self._sender.submit(lambda: self._send(snapshot))

    def _send(self, snapshot: Snapshot) -> None:
        from opentelemetry.sdk.metrics.export import MetricExportResult

        if self._exporter.export(metrics_data(snapshot)) is not MetricExportResult.SUCCESS:
            raise OSError("the receiver did not take the metrics")


def metrics_data(snapshot: Snapshot) -> Any:
    """A snapshot as `MetricsData`: one resource, the run; one scope, this package."""
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    found, _ = kept(snapshot)
    header = snapshot.report.header
    resource = Resource({"service.name": "trainbudget", "service.instance.id": f"{run_label(header)}/{rank_label(header)}"})
    metrics = [_metric(family, snapshot) for family in chain(found, families(snapshot, AT_SCRAPE))]
    scope = ScopeMetrics(scope=InstrumentationScope("trainbudget"), metrics=metrics, schema_url="")
    return MetricsData(resource_metrics=[ResourceMetrics(resource=resource, scope_metrics=[scope], schema_url="")])


def _metric(family: Family, snapshot: Snapshot) -> Any:
    from opentelemetry.sdk.metrics.export import AggregationTemporality, Gauge, Metric, NumberDataPoint, Sum

    spec = family.spec
    started_ns, now_ns = int(snapshot.zero_unix_s * 1e9), int(snapshot.now_unix_s * 1e9)
    data: Any
    if spec.kind is Kind.HISTOGRAM:
        data = _histogram(family, snapshot, started_ns, now_ns)
    else:
        points = [
            NumberDataPoint(attributes=dict(s.labels), start_time_unix_nano=started_ns, time_unix_nano=now_ns, value=s.value)
            for s in family.series
        ]
        data = (
            Sum(data_points=points, aggregation_temporality=AggregationTemporality.CUMULATIVE, is_monotonic=True)
            if spec.kind is Kind.COUNTER
            else Gauge(data_points=points)
        )
    return Metric(name=otlp_name(spec), description=spec.help, unit=_UNITS.get(spec.unit, ""), data=data)


def _histogram(family: Family, snapshot: Snapshot, started_ns: int, now_ns: int) -> Any:
    from opentelemetry.sdk.metrics.export import AggregationTemporality, Histogram, HistogramDataPoint

    read = family.spec.read_histogram
    found = read(snapshot) if read is not None else None
    assert found is not None  # a family without it has no series and is not here
    labels = {key: value for key, value in family.series[0].labels if key != "le"}
    point = HistogramDataPoint(
        attributes=labels,
        start_time_unix_nano=started_ns,
        time_unix_nano=now_ns,
        count=sum(found.counts),
        sum=found.total,
        bucket_counts=list(found.counts),
        explicit_bounds=list(found.bounds),
        min=_UNKNOWN,
        max=_UNKNOWN,
    )
    return Histogram(data_points=[point], aggregation_temporality=AggregationTemporality.CUMULATIVE)


def otlp_name(spec: MetricSpec) -> str:
    """Without `_total`, which receivers append to monotonic sums themselves."""
    return spec.name.removesuffix("_total")
