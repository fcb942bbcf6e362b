"""The outputs that are asked for by settings: push, files, OTLP, messages. One that cannot be opened does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trainbudget.clock import Clock
from trainbudget.errors import ConfigError
from trainbudget.sinks.base import Sink


def open_outputs(
    *,
    pushgateway: str | None = None,
    textfile: str | None = None,
    otlp: str | None = None,
    notify: Sequence[str] = (),
    clock: Clock | None = None,
    warn: Callable[[str], None] = lambda text: None,
) -> list[Sink]:
    """The sinks that are asked for; what cannot be opened is told to `warn` and left out.

    Args:
        pushgateway: its address.
        textfile: the folder of node_exporter's textfile collector.
        otlp: the endpoint for metrics, or `auto` for the OTEL_EXPORTER_OTLP_* variables.
        notify: apprise addresses.
    """
    openers: list[Callable[[], Sink]] = []
    if pushgateway:
        openers.append(lambda: _pushgateway(pushgateway, clock))
    if textfile:
        openers.append(lambda: _textfile(textfile, clock))
    if otlp:
        openers.append(lambda: _otlp(None if otlp == "auto" else otlp, clock))
    if notify:
        openers.append(lambda: _notify(notify, clock))
    out: list[Sink] = []
    for opener in openers:
        try:
            out.append(opener())
        except ConfigError as err:
            warn(str(err))
    return out


def _pushgateway(url: str, clock: Clock | None) -> Sink:
    from trainbudget.sinks.push import PushgatewaySink

    return PushgatewaySink(url, clock=clock)


def _textfile(folder: str, clock: Clock | None) -> Sink:
    from trainbudget.sinks.textfile import TextfileSink

    return TextfileSink(folder, clock=clock)


def _otlp(endpoint: str | None, clock: Clock | None) -> Sink:
    from trainbudget.sinks.otlp import OtlpSink

    return OtlpSink(endpoint, clock=clock)


def _notify(urls: Sequence[str], clock: Clock | None) -> Sink:
    from trainbudget.sinks.notify import NotifySink

    return NotifySink(urls, clock=clock)
