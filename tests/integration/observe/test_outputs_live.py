"""A watched loop with every output switched on by variables: each receives, and training is none the wiser."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import trainbudget
from unit.sinks.receiver import receiving


def test_a_loop_reaches_the_gateway_the_textfile_and_the_collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra `otlp` is not installed")
    monkeypatch.delenv("TRAINBUDGET_DISABLED", raising=False)
    monkeypatch.setenv("TRAINBUDGET_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("TRAINBUDGET_LISTEN", "off")
    (tmp_path / "textfile").mkdir()
    with receiving() as gateway, receiving() as collector:
        monkeypatch.setenv("TRAINBUDGET_PUSHGATEWAY", gateway.url)
        monkeypatch.setenv("TRAINBUDGET_TEXTFILE", str(tmp_path / "textfile"))
        monkeypatch.setenv("TRAINBUDGET_OTLP", f"{collector.url}/v1/metrics")
        with trainbudget.Monitor(run_name="outputs", backend="mock", price="2 USD/h") as monitor:
            for _ in range(20):
                with monitor.step(tokens=100):
                    time.sleep(0.05)
            pushed = gateway.wait(1)
            sent = collector.wait(1)
            deadline = time.monotonic() + 10
            while not (files := list((tmp_path / "textfile").iterdir())):
                assert time.monotonic() < deadline
                time.sleep(0.1)
            text = files[0].read_text(encoding="utf-8")
        assert pushed[0].method == "PUT"
        assert b"trainbudget_run_info" in pushed[0].body
        assert sent[0].path == "/v1/metrics"
        assert 'run="outputs' in text
        assert gateway.calls[-1].method == "DELETE"
    assert list((tmp_path / "textfile").iterdir()) == []
