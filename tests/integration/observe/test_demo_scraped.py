"""The product's own demo, a real training on the CPU, scraped by a real Prometheus every second until it has ended."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from integration.observe.live import prometheus_config, quick_rules
from integration.observe.servers import Api, free_port, needs, process, prometheus
from trainbudget.catalog.run_metrics import STATES

pytestmark = [pytest.mark.servers, pytest.mark.slow, needs("prometheus")]

#: What a run on a simulated GPU with a price and a budget must have shown.
SHOWN = (
    "trainbudget_cost_total",
    "trainbudget_wasted_cost_total",
    "trainbudget_projected_cost",
    "trainbudget_budget_cost",
    "trainbudget_gpu_utilization_ratio",
    "trainbudget_gpu_memory_used_bytes",
    "trainbudget_step_seconds_bucket",
    "trainbudget_tokens_total",
    "trainbudget_self_seconds_total",
    "trainbudget:spend_per_hour",
    "trainbudget:goodput_ratio",
)


def test_a_demo_run_is_seen_from_its_start_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="the demo trains with torch")
    port = free_port()
    monkeypatch.setenv("TRAINBUDGET_LISTEN", f"127.0.0.1:{port}")
    monkeypatch.setenv("TRAINBUDGET_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("TRAINBUDGET_DISABLED", raising=False)
    command = [sys.executable, "-m", "trainbudget", "demo", "--framework", "loop", "--steps", "200", "--serve"]
    config = prometheus_config(quick_rules(tmp_path), [f"127.0.0.1:{port}"], "http://127.0.0.1:9", [])
    with (
        process(command, tmp_path / "demo.log", f"http://127.0.0.1:{port}/metrics", wait_s=90.0),
        prometheus(tmp_path, config) as url,
    ):
        api = Api(url)
        deadline = time.monotonic() + 150.0
        while not api.now(f"trainbudget_run_state >= {STATES['idle']}"):  # has left its training loop, or has ended
            assert time.monotonic() < deadline, (tmp_path / "demo.log").read_text()[-2000:]
            time.sleep(1.0)
        missing = [name for name in SHOWN if not api.now(f"count(last_over_time({name}[5m]))")]
        assert missing == []
        states = {value for s in api.over("trainbudget_run_state", time.time() - 240, time.time(), 1) for _, value in s["values"]}
        assert str(STATES["training"]) in states
        assert api.now("max(trainbudget_last_step)")[0]["value"][1] == "200"
        cost = float(api.now("sum(trainbudget_cost_total)")[0]["value"][1])
        hours = float(api.now("sum(trainbudget_gpu_seconds_total)")[0]["value"][1]) / 3600.0
        price = float(api.now("max(trainbudget_gpu_price_per_hour)")[0]["value"][1])
        assert cost == pytest.approx(hours * price, rel=0.02)
        rules = [rule for group in api.get("rules")["groups"] for rule in group["rules"]]
        assert [rule["name"] for rule in rules if rule["health"] != "ok"] == []
        scrapes = float(api.now("max(count_over_time(trainbudget_up[1m]))")[0]["value"][1])
        assert scrapes >= 10  # one a second; this machine is shared
    assert os.listdir(tmp_path / "runs")
