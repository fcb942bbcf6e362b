"""Outputs by settings: each is opened, a bad one is told and left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainbudget.sinks.outputs import open_outputs


def test_nothing_asked_for_is_nothing_opened() -> None:
    assert open_outputs() == []


def test_a_bad_one_is_told_and_does_not_stop_the_others(tmp_path: Path) -> None:
    told: list[str] = []
    sinks = open_outputs(pushgateway="nonsense", textfile=str(tmp_path), warn=told.append)
    assert [sink.name for sink in sinks] == ["textfile"]
    assert len(told) == 1
    assert "http://pushgateway:9091" in told[0]


def test_all_of_them() -> None:
    pytest.importorskip("apprise", reason="the extra `notify` is not installed")
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra `otlp` is not installed")
    sinks = open_outputs(pushgateway="http://127.0.0.1:9", textfile="/tmp", otlp="auto", notify=("json://127.0.0.1:9/x",))
    assert [sink.name for sink in sinks] == ["pushgateway", "textfile", "otlp", "notify"]
    for sink in sinks:
        sink.close()
