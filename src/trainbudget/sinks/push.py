"""Pushgateway, for jobs that end before anybody scrapes them. The group is deleted when the run ends well."""

from __future__ import annotations

import base64
import urllib.parse
import urllib.request
from collections.abc import Sequence

from trainbudget.catalog import Snapshot, rank_label, run_label
from trainbudget.clock import Clock, SystemClock
from trainbudget.engine.report import Report
from trainbudget.errors import ConfigError
from trainbudget.findings import Finding
from trainbudget.sinks.background import Background
from trainbudget.sinks.exposition import CONTENT_TYPE, body_of, tail_of
from trainbudget.sinks.zero import ZeroPoint

#: Pushed this often, and at once when a finding is raised or cleared or the run ends.
PERIOD_S = 15.0
TIMEOUT_S = 5.0
#: A run that failed leaves its group, so that its last words can be read; its report's time keeps it from looking alive.
CLEAN = ("finished", "stopped", "interrupted")


class PushgatewaySink:
    """Pushes each rank as a group of its own: `/metrics/job/JOB/run/RUN/rank/RANK`.

    Args:
        url: of the gateway, `http://host:9091`; user and password in it are sent as basic authentication.
        job: the group's job.

    Raises:
        ConfigError: `url` is no HTTP address.
    """

    name = "pushgateway"

    def __init__(self, url: str, *, job: str = "trainbudget", period_s: float = PERIOD_S, clock: Clock | None = None) -> None:
        self._base, self._authorization = split_address(url)
        self._job = job
        self._period_s = period_s
        self._clock = clock or SystemClock()
        self._zero = ZeroPoint()
        self._sender = Background(self.name)
        self._next_s = 0.0
        self._outcome: str | None = None
        self._group: str | None = None

    @property
    def errors(self) -> int:
        """Pushes that failed."""
        return self._sender.errors

    def write(self, report: Report, raised: Sequence[Finding], cleared: Sequence[Finding]) -> None:
        now_s = self._clock.now_s()
        ended = report.outcome is not None and self._outcome is None
        if now_s < self._next_s and not raised and not cleared and not ended:
            return
        self._next_s = now_s + self._period_s
        self._outcome = report.outcome
        self._group = group_url(self._base, self._job, run_label(report.header), rank_label(report.header))
        text = exposition(report, self._zero, self._clock.unix_s())
        self._sender.submit(lambda group=self._group: self._send("PUT", group, text))  # type: ignore[misc]

    def close(self) -> None:
        """Delete the group after a clean end; waits at most two seconds."""
        if self._group is not None and self._outcome in CLEAN:
            self._sender.submit(lambda group=self._group: self._send("DELETE", group, b""))  # type: ignore[misc]
        self._sender.close()

    def _send(self, method: str, group: str, body: bytes) -> None:
        headers = {"Content-Type": CONTENT_TYPE}
        if self._authorization:
            headers["Authorization"] = self._authorization
        request = urllib.request.Request(group, data=body or None, method=method, headers=headers)  # noqa: S310 - checked above
        with urllib.request.urlopen(request, timeout=TIMEOUT_S):  # noqa: S310 - checked in split_address
            pass


def exposition(report: Report, zero: ZeroPoint, now_unix_s: float) -> bytes:
    """The whole text of a report, ages as of now."""
    zero_s = zero.of(report.t_s, now_unix_s)
    body, dropped = body_of(report, zero_unix_s=zero_s, now_unix_s=now_unix_s)
    snapshot = Snapshot(report=report, zero_unix_s=zero_s, now_unix_s=now_unix_s, dropped=dropped)
    return (body + tail_of(snapshot)).encode("utf-8", "replace")


def group_url(base: str, job: str, run: str, rank: str) -> str:
    """Values in base64, as the gateway's API has it, so that any run name is a path."""
    parts = [("job", job), ("run", run), ("rank", rank)]
    return f"{base}/metrics" + "".join(f"/{key}@base64/{_encoded(value)}" for key, value in parts)


def split_address(url: str) -> tuple[str, str | None]:
    """The address without credentials, and the `Authorization` header they make.

    Raises:
        ConfigError: not an http or https address.
    """
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"pushgateway: {url!r} is no address; write for example http://pushgateway:9091")
    authorization = None
    if parts.username:
        user = urllib.parse.unquote(parts.username) + ":" + urllib.parse.unquote(parts.password or "")
        authorization = "Basic " + base64.b64encode(user.encode()).decode()
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path.rstrip('/')}", authorization


def _encoded(value: str) -> str:
    return base64.urlsafe_b64encode(value.encode("utf-8", "replace")).decode().rstrip("=") or "="
