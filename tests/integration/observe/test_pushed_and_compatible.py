"""A real Pushgateway behind a real Prometheus; vmalert and VictoriaMetrics on the same rules."""

from __future__ import annotations

import re
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from integration.observe.live import prometheus_config
from integration.observe.servers import Api, needs, process, prometheus, pushgateway, victoria_metrics
from trainbudget.render import rules
from trainbudget.sinks.push import PushgatewaySink, exposition
from trainbudget.sinks.zero import ZeroPoint
from unit.sinks.report_samples import report

pytestmark = [pytest.mark.servers]


def until(condition: Any, what: str, timeout_s: float = 20.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.2)
    raise AssertionError(f"{what}: not within {timeout_s:.0f} s")


@needs("prometheus", "prometheus-pushgateway")
def test_a_pushed_run_is_scraped_with_its_own_labels_and_its_group_is_gone_after_a_clean_end(tmp_path: Path) -> None:
    with pushgateway(tmp_path) as gateway:
        target = gateway.removeprefix("http://")
        scrape = {"job_name": "pushgateway", "honor_labels": True, "static_configs": [{"targets": [target]}]}
        config = prometheus_config([], [], "http://127.0.0.1:9", [scrape])
        with prometheus(tmp_path, config) as url:
            api = Api(url)
            sink = PushgatewaySink(gateway)
            sink.write(report(), (), ())
            found = until(lambda: api.now("trainbudget_cost_total"), "the pushed cost")
            assert found[0]["metric"]["run"] == "llama-lora-7f3a"
            assert found[0]["value"][1] == "1.25"
            sink.write(report(outcome="finished"), (), ())
            sink.close()
            with urllib.request.urlopen(f"{gateway}/metrics", timeout=5) as answer:
                assert b"trainbudget_cost_total" not in answer.read()


@needs("vmalert")
@pytest.mark.parametrize("name", ["thresholds", "recording", "alerts"])
def test_vmalert_takes_the_rules(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.yaml"
    path.write_text(getattr(rules, f"{name}_yaml")(), encoding="utf-8")
    done = subprocess.run(["vmalert", "-dryRun", f"-rule={path}"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@needs("vmalert")
def test_vmalert_refuses_a_broken_rule(tmp_path: Path) -> None:
    """Guards the test above: a dry run that accepts anything proves nothing."""
    path = tmp_path / "broken.yaml"
    path.write_text("groups: [{name: a, rules: [{alert: B, expr: 'sum(('}]}]\n", encoding="utf-8")
    done = subprocess.run(["vmalert", "-dryRun", f"-rule={path}"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0


@pytest.mark.slow
@needs("victoria-metrics", "vmalert")
def test_vmalert_evaluates_every_rule_over_victoria_metrics_without_an_error(tmp_path: Path) -> None:
    names = []
    for name in ("thresholds", "recording", "alerts"):
        path = tmp_path / f"{name}.yaml"
        text = (
            getattr(rules, f"{name}_yaml")().replace('interval: "30s"', 'interval: "1s"').replace("interval: 30s", "interval: 1s")
        )
        path.write_text(re.sub(r'for: "[0-9]+[smh]"', 'for: "1s"', text), encoding="utf-8")
        names.append(f"-rule={path}")
    with victoria_metrics(tmp_path) as vm:
        zero, began_s = ZeroPoint(), time.monotonic()

        def feed() -> None:
            """As a scrape would: the run's clock goes on."""
            now = report(t_s=100.0 + time.monotonic() - began_s)
            request = urllib.request.Request(
                f"{vm}/api/v1/import/prometheus", data=exposition(now, zero, time.time()), method="POST"
            )
            urllib.request.urlopen(request, timeout=5).close()

        port = Api(vm).url.rpartition(":")[2]
        listen = str(int(port) + 1 if int(port) < 65000 else int(port) - 1)
        command = ["vmalert", *names, f"-datasource.url={vm}", f"-remoteWrite.url={vm}", f"-remoteRead.url={vm}"]
        command += [
            "-notifier.url=http://127.0.0.1:9",
            f"-httpListenAddr=127.0.0.1:{listen}",
            "-datasource.queryStep=1s",
            "-remoteWrite.flushInterval=500ms",
        ]
        with process(command, tmp_path / "vmalert.log", f"http://127.0.0.1:{listen}/health"):
            api = Api(vm)

            def recorded() -> Any:
                feed()
                return api.now("trainbudget:spend_per_hour")

            found = until(recorded, "a recorded spend", 120.0)
            assert found[0]["metric"]["currency"] == "USD"
            assert float(found[0]["value"][1]) == pytest.approx(2.49)

            def firing() -> Any:
                """Its templates, which look numbers up, are run as well by then."""
                feed()
                return api.now('ALERTS{alertname="TrainbudgetOutOfMemorySoon",alertstate="firing"}')

            until(firing, "an alert that fires", 120.0)
            with urllib.request.urlopen(f"http://127.0.0.1:{listen}/metrics", timeout=5) as answer:
                text = answer.read().decode()
    errors = [
        line for line in text.splitlines() if line.startswith(("vmalert_alerting_rules_error", "vmalert_recording_rules_error"))
    ]
    assert [line for line in errors if not line.endswith(" 0")] == []
    assert len(errors) > 80
