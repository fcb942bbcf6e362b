"""Messages about raised and cleared findings, through apprise: Slack, Discord, ntfy, mail, webhooks and a hundred others."""

from __future__ import annotations

from collections.abc import Sequence

from trainbudget.catalog import clean, run_label
from trainbudget.clock import Clock, SystemClock
from trainbudget.engine.report import Report
from trainbudget.errors import ConfigError
from trainbudget.findings import Finding, Severity
from trainbudget.sinks.background import Background

#: The same finding is told again at most this often: one that comes and goes is one piece of news.
QUIET_S = 900.0
#: Messages that may wait for a slow receiver.
MOST_WAITING = 50
_TYPES = {Severity.INFO: "info", Severity.WARNING: "warning", Severity.CRITICAL: "failure"}


class NotifySink:
    """Sends a message for each finding from `at_least` on, and one when it has cleared.

    Rank 0 speaks for the job. Other ranks tell only what happens to a device of theirs and is critical: what all ranks see
    (waiting for data, a hang) would be told a thousand times.

    Args:
        urls: apprise addresses (`slack://...`, `ntfy://...`, `mailto://...`, `json://host/path`).

    Raises:
        ConfigError: apprise is not installed, or does not know an address.
    """

    name = "notify"

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        at_least: Severity = Severity.WARNING,
        quiet_s: float = QUIET_S,
        clock: Clock | None = None,
    ) -> None:
        try:
            import apprise
        except ImportError as err:
            raise ConfigError("notify: apprise is not installed; pip install 'trainbudget[notify]'") from err
        self._apprise = apprise.Apprise()
        for url in [urls] if isinstance(urls, str) else urls:
            if not self._apprise.add(url):
                # The address itself may hold a secret: only its kind is shown.
                raise ConfigError(f"notify: an address of kind {url.partition(':')[0]!r} is not understood by apprise")
        self._at_least = at_least
        self._quiet_s = quiet_s
        self._clock = clock or SystemClock()
        self._sender = Background(self.name, most=MOST_WAITING)
        self._told: dict[tuple[str, int | None, int | None, Severity], float] = {}
        self._open: set[tuple[str, int | None, int | None]] = set()

    @property
    def errors(self) -> int:
        return self._sender.errors

    def write(self, report: Report, raised: Sequence[Finding], cleared: Sequence[Finding]) -> None:
        for finding in raised:
            severity = Severity(finding.severity)
            if severity.level < self._at_least.level or not _own_news(report, finding, severity):
                continue
            if not self._is_news(finding, severity):
                continue
            self._open.add(_key(finding))
            self._submit(title_of(report, finding), body_of(report, finding), _TYPES[severity])
        for finding in cleared:
            if _key(finding) in self._open:
                self._open.discard(_key(finding))
                self._submit(f"{run_label(report.header)}: {finding.code} is over", cleared_text(finding), "success")

    def close(self) -> None:
        self._sender.close()

    def _is_news(self, finding: Finding, severity: Severity) -> bool:
        now_s, key = self._clock.now_s(), (*_key(finding), severity)
        before = self._told.get(key)
        if before is not None and now_s - before < self._quiet_s:
            return False
        self._told[key] = now_s
        return True

    def _submit(self, title: str, body: str, kind: str) -> None:
        def send() -> None:
            if not self._apprise.notify(title=title, body=body, notify_type=kind):
                raise OSError("a receiver did not take the message")

        self._sender.submit(send)


def title_of(report: Report, finding: Finding) -> str:
    """`llama-lora-7f3a: critical: oom_forecast/leak`."""
    return f"{run_label(report.header)}: {Severity(finding.severity).value}: {finding.name}"


def body_of(report: Report, finding: Finding) -> str:
    """What is wrong in words, where, what the run costs, and the one setting to change."""
    lines = [clean(finding.summary, most=600) or finding.code]
    where = [f"{what} {number}" for what, number in (("GPU", finding.gpu), ("rank", finding.rank)) if number is not None]
    if where:
        lines.append("On " + ", ".join(where) + ".")
    if report.price is not None and report.price.per_gpu_hour is not None and report.currency:
        an_hour = report.price.per_gpu_hour * report.charged_gpus
        lines.append(f"This process costs {an_hour:.2f} {report.currency} an hour.")
    lines += [f"Try {clean(advice.setting, most=200)}." for advice in finding.advice[:1] if advice.setting]
    return "\n".join(lines)


def cleared_text(finding: Finding) -> str:
    lasted_s = (finding.cleared_s or finding.raised_s) - finding.raised_s
    return f"{clean(finding.summary, most=600) or finding.code}\nIt lasted {lasted_s / 60.0:.1f} minutes."


def _own_news(report: Report, finding: Finding, severity: Severity) -> bool:
    return not report.header.rank or (severity is Severity.CRITICAL and finding.gpu is not None)


def _key(finding: Finding) -> tuple[str, int | None, int | None]:
    return (finding.code, finding.gpu, finding.rank)
