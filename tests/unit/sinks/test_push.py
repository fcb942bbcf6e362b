"""Pushgateway and textfile: groups, periods, ends, and receivers that are down."""

from __future__ import annotations

import base64
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from trainbudget.clock import ManualClock
from trainbudget.errors import ConfigError
from trainbudget.events import Header
from trainbudget.sinks.push import PushgatewaySink, group_url, split_address
from trainbudget.sinks.textfile import TextfileSink
from unit.sinks.receiver import receiving
from unit.sinks.report_samples import finding, report


def decoded(path: str) -> list[str]:
    parts = path.strip("/").split("/")[1:]
    return [base64.urlsafe_b64decode(v + "=" * (-len(v) % 4)).decode() for v in parts[1::2]]


def test_each_rank_is_a_group_and_its_body_is_the_exposition() -> None:
    with receiving() as gateway:
        sink = PushgatewaySink(gateway.url)
        sink.write(report(header=Header(run="a/b c", id="7f", rank=3)), (), ())
        call = gateway.wait(1)[0]
        sink.close()
    assert call.method == "PUT"
    assert decoded(call.path) == ["trainbudget", "a/b c-7f", "3"]
    names = {family.name for family in text_string_to_metric_families(call.body.decode())}
    assert {"trainbudget_cost", "trainbudget_last_step_timestamp_seconds", "trainbudget_report_timestamp_seconds"} <= names


def test_pushes_keep_their_period_but_a_finding_is_pushed_at_once() -> None:
    clock = ManualClock()
    with receiving() as gateway:
        sink = PushgatewaySink(gateway.url, clock=clock)
        sink.write(report(), (), ())
        gateway.wait(1)
        clock.advance(5.0)
        sink.write(report(), (), ())
        sink.write(report(), (finding("hang"),), ())
        gateway.wait(2)
        clock.advance(15.0)
        sink.write(report(), (), ())
        assert len(gateway.wait(3)) == 3
        sink.close()


@pytest.mark.parametrize(("outcome", "methods"), [("finished", ["PUT", "DELETE"]), ("failed", ["PUT"]), (None, ["PUT"])])
def test_the_group_is_deleted_after_a_clean_end_only(outcome: str | None, methods: list[str]) -> None:
    with receiving() as gateway:
        sink = PushgatewaySink(gateway.url)
        sink.write(report(outcome=outcome), (), ())
        gateway.wait(1)
        sink.close()
        assert [call.method for call in gateway.calls] == methods


def test_a_gateway_that_is_down_costs_the_caller_nothing() -> None:
    sink = PushgatewaySink("http://127.0.0.1:9")
    started = time.perf_counter()
    sink.write(report(), (), ())
    assert time.perf_counter() - started < 0.5
    sink.close()
    assert sink.errors == 1


def test_a_gateway_that_refuses_is_counted() -> None:
    with receiving(status=500) as gateway:
        sink = PushgatewaySink(gateway.url)
        sink.write(report(), (), ())
        gateway.wait(1)
        sink.close()
    assert sink.errors == 1


def test_credentials_travel_as_a_header_and_not_in_the_address() -> None:
    with receiving() as gateway:
        sink = PushgatewaySink(gateway.url.replace("http://", "http://me:s%40crt@"))
        sink.write(report(), (), ())
        call = gateway.wait(1)[0]
        sink.close()
    assert call.headers["Authorization"] == "Basic " + base64.b64encode(b"me:s@crt").decode()
    assert "crt" not in call.path


def test_an_empty_value_is_encoded_as_the_gateway_wants_it() -> None:
    assert group_url("http://x", "", "r", "0") == "http://x/metrics/job@base64/=/run@base64/cg/rank@base64/MA"


@pytest.mark.parametrize("url", ["pushgateway:9091", "ftp://x", "", "http://"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="http://pushgateway:9091"):
        split_address(url)


def test_a_textfile_is_whole_and_named_safely(tmp_path: Path) -> None:
    sink = TextfileSink(tmp_path)
    sink.write(report(header=Header(run="../../etc/x y", id="7f", rank=1)), (), ())
    assert [path.name for path in tmp_path.iterdir()] == ["trainbudget_.._.._etc_x_y-7f_1.prom"]
    text = next(tmp_path.iterdir()).read_text(encoding="utf-8")
    assert "trainbudget_cost" in {family.name for family in text_string_to_metric_families(text)}


def test_a_textfile_is_removed_after_a_clean_end_only(tmp_path: Path) -> None:
    for outcome, left in (("finished", 0), ("failed", 1)):
        sink = TextfileSink(tmp_path)
        sink.write(report(), (), ())
        sink.write(report(outcome=outcome), (), ())
        sink.close()
        assert len(list(tmp_path.iterdir())) == left


def test_a_folder_that_is_missing_is_an_error_the_fan_out_counts(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        TextfileSink(tmp_path / "no").write(report(), (), ())
