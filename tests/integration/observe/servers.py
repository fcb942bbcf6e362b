"""Real servers as plain processes on loopback, each on a free port, ended by their process id."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

#: Binary -> Debian package.
PACKAGES = {
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "prometheus-alertmanager": "prometheus-alertmanager",
    "amtool": "prometheus-alertmanager",
    "prometheus-pushgateway": "prometheus-pushgateway",
    "victoria-metrics": "victoria-metrics",
    "vmalert": "victoria-metrics",
}


def needs(*binaries: str) -> pytest.MarkDecorator:
    """Skips a test whose server is not installed, saying which package has it."""
    missing = [f"{name} (Debian: {PACKAGES[name]})" for name in binaries if shutil.which(name) is None]
    return pytest.mark.skipif(bool(missing), reason="not installed: " + ", ".join(missing))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def process(command: Sequence[str], log: Path, ready_url: str, *, wait_s: float = 20.0) -> Iterator[subprocess.Popen[bytes]]:
    """A server, from when it answers `ready_url` until the end of the block."""
    with log.open("wb") as out:
        server = subprocess.Popen(list(command), stdout=out, stderr=subprocess.STDOUT, cwd=log.parent)
        try:
            deadline = time.monotonic() + wait_s
            while True:
                if server.poll() is not None:
                    raise RuntimeError(f"{command[0]} ended with {server.returncode}: {log.read_text()[-2000:]}")
                with contextlib.suppress(OSError), urllib.request.urlopen(ready_url, timeout=1) as answer:
                    if answer.status == 200:
                        break
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{command[0]} is not ready after {wait_s} s: {log.read_text()[-2000:]}")
                time.sleep(0.05)
            yield server
        finally:
            server.terminate()
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait(5)


@contextlib.contextmanager
def prometheus(folder: Path, config: str | None = None) -> Iterator[str]:
    """Its URL. Data is in `folder/data`, the configuration `prometheus.yml` there."""
    port = free_port()
    if config is not None:
        (folder / "prometheus.yml").write_text(config, encoding="utf-8")
    command = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--storage.tsdb.retention.time=3650d",
        "--web.enable-lifecycle",
    ]
    with process(command, folder / "prometheus.log", f"http://127.0.0.1:{port}/-/ready"):
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def alertmanager(folder: Path, config: str) -> Iterator[str]:
    port = free_port()
    (folder / "alertmanager.yml").write_text(config, encoding="utf-8")
    command = [
        "prometheus-alertmanager",
        f"--config.file={folder / 'alertmanager.yml'}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
    ]
    with process(command, folder / "alertmanager.log", f"http://127.0.0.1:{port}/-/ready"):
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def pushgateway(folder: Path) -> Iterator[str]:
    port = free_port()
    command = ["prometheus-pushgateway", f"--web.listen-address=127.0.0.1:{port}"]
    with process(command, folder / "pushgateway.log", f"http://127.0.0.1:{port}/-/ready"):
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def victoria_metrics(folder: Path) -> Iterator[str]:
    port = free_port()
    command = [
        "victoria-metrics",
        f"-storageDataPath={folder / 'vm'}",
        f"-httpListenAddr=127.0.0.1:{port}",
        "-retentionPeriod=1y",
        "-search.latencyOffset=1s",
    ]
    with process(command, folder / "victoria.log", f"http://127.0.0.1:{port}/health"):
        yield f"http://127.0.0.1:{port}"


class Api:
    """Prometheus's HTTP API; errors become AssertionError with the server's words."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **query: Any) -> Any:
        address = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query, doseq=True)}"
        try:
            with urllib.request.urlopen(address, timeout=30) as answer:
                document = json.load(answer)
        except urllib.error.HTTPError as err:
            raise AssertionError(f"{query.get('query', path)}: {err.read().decode()[:500]}") from err
        assert document["status"] == "success", document
        return document["data"]

    def now(self, expression: str, at_s: float | None = None) -> list[dict[str, Any]]:
        query = {"query": expression} if at_s is None else {"query": expression, "time": f"{at_s:.3f}"}
        return list(self.get("query", **query)["result"])

    def over(self, expression: str, start_s: float, end_s: float, step_s: float) -> list[dict[str, Any]]:
        return list(self.get("query_range", query=expression, start=f"{start_s:.3f}", end=f"{end_s:.3f}", step=step_s)["result"])

    def label_values(self, metric: str, label: str, start_s: float, end_s: float) -> list[str]:
        return list(self.get(f"label/{label}/values", **{"match[]": metric, "start": f"{start_s:.0f}", "end": f"{end_s:.0f}"}))
