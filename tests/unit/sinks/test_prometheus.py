"""The exporter over real sockets: what a scraper sees, ports, bad names, bad neighbours."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import msgspec
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from trainbudget.catalog import METRICS, most_series
from trainbudget.clock import ManualClock
from trainbudget.config import Listen, parse_listen
from trainbudget.errors import ConfigError
from trainbudget.events import Header
from trainbudget.findings import Severity
from trainbudget.sinks.http_server import Page
from trainbudget.sinks.prometheus import PrometheusSink
from unit.sinks.report_samples import finding, gpu_report, report, unknown_report

ANY = "127.0.0.1:0"


def get(url: str, method: str = "GET") -> tuple[int, str, str]:
    request = urllib.request.Request(url, method=method)
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as err:
        return err.code, err.headers["Content-Type"], err.read().decode()


def series(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {(s.name, frozenset(s.labels.items())): s.value for f in text_string_to_metric_families(text) for s in f.samples}


@pytest.fixture
def sink() -> Iterator[PrometheusSink]:
    sink = PrometheusSink(ANY)
    yield sink
    sink.close()


def test_a_scrape_reads_back_what_the_collector_says(sink: PrometheusSink) -> None:
    sink.write(report(gpus=2), (), ())
    status, kind, text = get(f"{sink.url}/metrics")
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    changing = ("trainbudget_scrape_seconds_total", "trainbudget_sample_age_seconds")
    ours = {key: value for key, value in series(text).items() if key[0] not in changing}
    theirs = {k: v for k, v in series(generate_latest(sink.registry).decode()).items() if k[0] not in changing}
    assert ours == theirs
    assert len(ours) > 150


def test_before_the_first_report_a_scrape_is_empty_and_well_formed(sink: PrometheusSink) -> None:
    assert get(f"{sink.url}/metrics") == (200, "text/plain; version=0.0.4; charset=utf-8", "")


def test_an_old_report_grows_old_between_scrapes() -> None:
    clock = ManualClock()
    sink = PrometheusSink("off", clock=clock)
    sink.write(report(), (), ())
    clock.advance(60.0)
    ages = {k[0]: v for k, v in series(sink.body().decode()).items()}
    assert ages["trainbudget_sample_age_seconds"] == pytest.approx(61.0)
    assert ages["trainbudget_report_timestamp_seconds"] == pytest.approx(clock.unix_s() - 60.0)


def test_time_stamps_do_not_wander_with_late_reports() -> None:
    clock = ManualClock()
    sink = PrometheusSink("off", clock=clock)
    seen = set()
    for late in (0.0, 3.0, 1.0, 4.9):
        clock.advance(late)
        sink.write(report(), (), ())
        seen.add(next(v for k, v in series(sink.body().decode()).items() if k[0] == "trainbudget_last_step_timestamp_seconds"))
        clock.advance(-late)
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [("/", "GET", 200), ("/nothing", "GET", 404), ("/metrics", "POST", 405), ("/metrics", "HEAD", 200)],
)
def test_only_reading_and_only_known_pages(sink: PrometheusSink, path: str, method: str, status: int) -> None:
    sink.write(report(), (), ())
    answer = get(f"{sink.url}{path}", method)
    assert answer[0] == status
    assert (method == "HEAD") == (answer[2] == "")


def test_the_index_names_the_run_and_escapes_it(sink: PrometheusSink) -> None:
    sink.write(report(header=Header(run="<script>", id="1")), (), ())
    text = get(f"{sink.url}/")[2]
    assert "&lt;script&gt;-1 rank 0" in text
    assert "/metrics" in text


def test_further_pages_are_served_and_one_that_fails_says_so() -> None:
    def broken() -> Page:
        raise RuntimeError("secret")

    sink = PrometheusSink(ANY, pages={"/hello": lambda: Page(content_type="text/plain", body=b"hi"), "/broken": broken})
    try:
        assert get(f"{sink.url}/hello") == (200, "text/plain", "hi")
        status, _, text = get(f"{sink.url}/broken")
        assert (status, text) == (500, "RuntimeError\n")
    finally:
        sink.close()


# --- ports


def free_block(length: int = 3) -> int:
    """A port with `length` - 1 free ones after it."""
    for _ in range(50):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            start = probe.getsockname()[1]
        try:
            for port in range(start, start + length):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return start
    raise RuntimeError("no free block of ports")


def test_a_taken_port_gives_the_next_free_one_and_says_so() -> None:
    port = free_block()
    first, second = PrometheusSink(f"127.0.0.1:{port}"), PrometheusSink(f"127.0.0.1:{port}")
    try:
        assert first.notice is None
        assert (first.port, second.port) == (port, port + 1)
        assert second.notice == f"port {port} is taken, metrics are at http://127.0.0.1:{port + 1}/metrics"
    finally:
        first.close()
        second.close()


def test_strict_refuses_a_taken_port() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="cannot be had"):
            PrometheusSink(f"127.0.0.1:{taken.getsockname()[1]}", strict=True)


def test_close_frees_the_port_at_once_also_with_a_scraper_connected() -> None:
    sink = PrometheusSink(ANY)
    sink.write(report(), (), ())
    with socket.create_connection(("127.0.0.1", sink.port or 0)) as scraper:
        scraper.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert scraper.recv(12) == b"HTTP/1.1 200"
        port = sink.port
        sink.close()
        again = PrometheusSink(f"127.0.0.1:{port}", strict=True)
        assert again.port == port
        again.close()
        again.close()


def test_local_ranks_take_following_ports() -> None:
    port = free_block(4)
    ranks = [PrometheusSink(f"127.0.0.1:{port}", local_rank=n) for n in (2, 0, 1)]
    try:
        assert [rank.port for rank in ranks] == [port + 2, port, port + 1]
    finally:
        for rank in ranks:
            rank.close()


def test_a_host_that_cannot_be_listened_on_is_a_notice_not_a_crash() -> None:
    sink = PrometheusSink("192.0.2.1:9837")
    assert sink.url is None
    assert sink.notice is not None
    assert "192.0.2.1:9837" in sink.notice


@pytest.mark.parametrize(
    ("text", "listen"),
    [
        ("off", None),
        ("127.0.0.1:9900", Listen(port=9900)),
        (":9900", Listen(port=9900)),
        ("9900", Listen(port=9900)),
        ("0.0.0.0", Listen(host="0.0.0.0")),
        ("[::1]:9900", Listen(host="::1", port=9900)),
        ("node-1.cluster:1", Listen(host="node-1.cluster", port=1)),
    ],
)
def test_listen_is_read(text: str, listen: Listen | None) -> None:
    assert parse_listen(text) == listen


@pytest.mark.parametrize("text", ["a:b", "x:99999", "1.2.3.4:", "http://x:1", "::1:9837"])
def test_a_bad_listen_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:9837"):
        parse_listen(text)


# --- bad input


@pytest.mark.parametrize(
    "name", ["\ud800\udfff", "a\u2028b\u2029c", 'q"uo\\te\n', "x" * 100_000, "", "\x00\x1b[31m", "名前", '{run=~".*"}']
)
def test_hostile_run_names_never_break_a_scrape(sink: PrometheusSink, name: str) -> None:
    sink.write(report(header=Header(run=name, id=None)), (), ())
    text = get(f"{sink.url}/metrics")[2]
    runs = {labels["run"] for _, items in series(text) if (labels := dict(items))}
    assert len(runs) == 1
    run = runs.pop()
    assert 0 < len(run) <= 128
    assert run.isprintable()


def test_series_stay_within_their_limit_and_what_is_left_out_is_counted() -> None:
    sink = PrometheusSink("off")
    many = tuple(finding(f"code_{i}", s) for i in range(150) for s in Severity)
    sink.write(report(gpus=2, findings=many), (), ())
    found = series(sink.body().decode())
    assert len(found) <= most_series(2)
    assert next(v for k, v in found.items() if k[0] == "trainbudget_series_dropped") > 300
    assert next(v for k, v in found.items() if k[0] == "trainbudget_cost_total") == 1.25


def test_every_metric_of_eight_full_gpus_fits() -> None:
    sink = PrometheusSink("off")
    sink.write(report(gpus=8), (), ())
    found = series(sink.body().decode())
    assert len(found) <= most_series(8)
    assert next(v for k, v in found.items() if k[0] == "trainbudget_series_dropped") == 0


def test_a_run_of_which_nothing_is_known_is_still_there(sink: PrometheusSink) -> None:
    sink.write(unknown_report(), (), ())
    text = get(f"{sink.url}/metrics")[2]
    assert "trainbudget_up" in text
    assert "trainbudget_cost_total" not in text


def test_a_report_that_cannot_be_rendered_leaves_the_last_good_one(sink: PrometheusSink) -> None:
    sink.write(report(), (), ())
    with pytest.raises(AttributeError):
        sink.write(msgspec.structs.replace(report(), ledger=None), (), ())  # type: ignore[arg-type]
    assert "trainbudget_cost_total" in get(f"{sink.url}/metrics")[2]


MULTIPROC = """
import sys
from unit.sinks.report_samples import report
from trainbudget.sinks.prometheus import PrometheusSink
from prometheus_client import generate_latest
sink = PrometheusSink("off")
sink.write(report(), (), ())
assert b"trainbudget_cost_total" in sink.body()
assert b"trainbudget_cost_total" in generate_latest(sink.registry)
"""


def test_multiprocess_mode_of_the_host_application_changes_nothing(tmp_path: object) -> None:
    environment = {
        **os.environ,
        "PROMETHEUS_MULTIPROC_DIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    subprocess.run([sys.executable, "-c", MULTIPROC], check=True, env=environment, timeout=60)
    assert os.listdir(str(tmp_path)) == []


FORK = """
import os, sys, time
from trainbudget.sinks.prometheus import PrometheusSink
sink = PrometheusSink("127.0.0.1:0")
if os.fork() == 0:
    os.close(1), os.close(2)
    time.sleep(3)
    os._exit(0)
print(sink.port, flush=True)
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork is not there on this platform")
def test_a_forked_worker_that_outlives_the_run_does_not_hold_the_port() -> None:
    port = int(subprocess.run([sys.executable, "-c", FORK], check=True, capture_output=True, timeout=60).stdout)
    sink = PrometheusSink(f"127.0.0.1:{port}", strict=True)
    sink.close()


# --- neighbours


def test_clients_that_say_nothing_do_not_hold_up_a_scrape(sink: PrometheusSink) -> None:
    sink.write(report(), (), ())
    silent = [socket.create_connection(("127.0.0.1", sink.port or 0)) for _ in range(20)]
    try:
        assert get(f"{sink.url}/metrics")[0] == 200
    finally:
        for connection in silent:
            connection.close()


def test_a_scrape_is_answered_while_another_thread_holds_the_interpreter(sink: PrometheusSink) -> None:
    sink.write(report(gpus=8), (), ())
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            sum(range(200))

    busy = threading.Thread(target=spin, daemon=True)
    busy.start()
    try:
        times = []
        for _ in range(5):
            started = time.perf_counter()
            get(f"{sink.url}/metrics")
            times.append(time.perf_counter() - started)
    finally:
        stop.set()
        busy.join()
    # The client shares the interpreter here and pays its own waits too: the contract's 100 ms are measured in bench/scrape.
    assert min(times) < 0.5


def test_every_metric_is_in_the_golden_exposition() -> None:
    """Names are a public contract: the golden file makes a rename visible in review."""
    clock = ManualClock()
    sink = PrometheusSink("off", clock=clock)
    sink.write(report(), (), ())
    golden = os.path.join(os.path.dirname(__file__), "..", "..", "golden", "metrics.prom")
    text = "".join(line for line in sink.body().decode().splitlines(True) if not line.startswith("trainbudget_scrape_seconds"))
    if os.environ.get("TRAINBUDGET_UPDATE_GOLDEN"):
        with open(golden, "w", encoding="utf-8") as file:
            file.write(text)
    with open(golden, encoding="utf-8") as file:
        assert text == file.read()
    assert all(spec.name in text for spec in METRICS if spec.stem != "scrape_seconds_total")


def test_the_reports_of_a_device_without_answers_are_short() -> None:
    sink = PrometheusSink("off")
    sink.write(report(), (), ())
    full = len(series(sink.body().decode()))
    bare = msgspec.structs.replace(report(), gpus=(gpu_report(reading=None, allocator=None),))
    sink.write(bare, (), ())
    assert len(series(sink.body().decode())) < full - 15
