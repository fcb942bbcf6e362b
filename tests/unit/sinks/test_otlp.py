"""OTLP against a receiver that decodes what comes."""

from __future__ import annotations

import gzip

import pytest

from trainbudget.catalog import METRICS
from trainbudget.clock import ManualClock
from unit.sinks.receiver import Call, receiving
from unit.sinks.report_samples import finding, report, unknown_report

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra `otlp` is not installed")

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from trainbudget.sinks.otlp import OtlpSink, otlp_name


def metrics_of(call: Call) -> dict[str, object]:
    body = gzip.decompress(call.body) if call.headers.get("Content-Encoding") == "gzip" else call.body
    request = ExportMetricsServiceRequest.FromString(body)
    return {m.name: m for r in request.resource_metrics for s in r.scope_metrics for m in s.metrics}


def test_every_metric_arrives_with_its_kind_labels_and_value() -> None:
    with receiving() as collector:
        sink = OtlpSink(f"{collector.url}/v1/metrics")
        sink.write(report(gpus=2), (), ())
        found = metrics_of(collector.wait(1)[0])
        sink.close()
    assert set(found) == {otlp_name(spec) for spec in METRICS}
    cost = found["trainbudget_cost"].sum  # type: ignore[attr-defined]
    assert cost.is_monotonic
    assert cost.aggregation_temporality == 2  # cumulative
    assert cost.data_points[0].as_double == 1.25
    assert {a.key: a.value.string_value for a in cost.data_points[0].attributes} == {
        "run": "llama-lora-7f3a",
        "rank": "0",
        "currency": "USD",
    }
    histogram = found["trainbudget_step_seconds"].histogram.data_points[0]  # type: ignore[attr-defined]
    assert (histogram.count, histogram.sum) == (90, 85.5)
    assert list(histogram.bucket_counts) == [0, 0, 0, 0, 10, 70, 8, 2, 0, 0, 0, 0]
    power = found["trainbudget_gpu_power_watts"]
    assert power.unit == "W"  # type: ignore[attr-defined]
    assert [p.as_double for p in power.gauge.data_points] == [612.5, 612.5]  # type: ignore[attr-defined]


def test_what_is_unknown_is_not_sent() -> None:
    with receiving() as collector:
        sink = OtlpSink(f"{collector.url}/v1/metrics")
        sink.write(unknown_report(), (), ())
        found = metrics_of(collector.wait(1)[0])
        sink.close()
    assert "trainbudget_cost" not in found
    assert "trainbudget_gpu_power_watts" not in found
    assert "trainbudget_up" in found


def test_it_keeps_its_period_and_sends_the_last_word_on_close() -> None:
    clock = ManualClock()
    with receiving() as collector:
        sink = OtlpSink(f"{collector.url}/v1/metrics", clock=clock)
        sink.write(report(), (), ())
        collector.wait(1)
        sink.write(report(outcome="finished", state="finished"), (), ())
        sink.close()
        calls = collector.wait(2)
    assert len(calls) == 2
    assert metrics_of(calls[1])["trainbudget_up"].gauge.data_points[0].as_double == 0.0  # type: ignore[attr-defined]


def test_a_finding_is_sent_at_once() -> None:
    clock = ManualClock()
    with receiving() as collector:
        sink = OtlpSink(f"{collector.url}/v1/metrics", clock=clock)
        sink.write(report(), (), ())
        sink.write(report(), (finding("hang"),), ())
        collector.wait(1)
        sink.close()
        assert 1 <= len(collector.calls) <= 2


def test_a_receiver_that_refuses_is_counted_and_nothing_is_raised() -> None:
    with receiving(status=400) as collector:
        sink = OtlpSink(f"{collector.url}/v1/metrics")
        sink.write(report(), (), ())
        collector.wait(1)
        sink.close()
    assert sink.errors == 1
