"""Starting a monitor: collaborators are made here, once, and the start line is printed."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from trainbudget.engine.report import Report
from trainbudget.errors import TrainBudgetError
from trainbudget.events import AnyEvent
from trainbudget.live.assembly import backend_factory, header_of, price_of
from trainbudget.live.console import add_handler
from trainbudget.live.enforce import Enforcer
from trainbudget.live.feeder import Feeder
from trainbudget.live.identity import prepare_directory, ranks_of, run_directory, run_id, run_name
from trainbudget.live.learned import LearnedBudget
from trainbudget.live.pipeline import Pipeline
from trainbudget.live.plan_facts import plan_facts
from trainbudget.live.probes.host import HostProbe, host_of, process_started_unix_s
from trainbudget.live.sampler import Sampler
from trainbudget.sinks.base import FanOut, Sink
from trainbudget.sinks.log import LogSink
from trainbudget.sinks.record import RecordSink, TraceWriter
from trainbudget.wording.start import start_lines

if TYPE_CHECKING:
    from trainbudget.monitor import Monitor

_log = logging.getLogger("trainbudget")


def start_feeder(monitor: Monitor) -> Feeder:
    """Make and start the threads of a monitor; each part that fails leaves the others working."""
    settings, run, clock = monitor.settings, monitor.run, monitor._clock
    if settings.log:
        add_handler(_log)
    for text in monitor._warnings:
        _log.warning("%s", text)
    _identify(monitor)
    writer = _writer(monitor)
    sinks: list[Sink] = [LogSink(_log)] if settings.log else []
    if writer is not None and run.directory is not None:
        sinks.append(RecordSink(run.directory))
    exporter = _exporter(monitor)
    if exporter is not None:
        sinks.append(exporter)
    enforcer = Enforcer(settings, run.ranks.world_size)

    def make_sampler() -> Sampler:
        return Sampler(
            backend_factory(settings.backend, run),
            clock,
            monitor._zero_s,
            period_s=settings.sample_period_s,
            local_rank=run.ranks.local_rank,
            local_world_size=run.ranks.local_world_size,
        )

    def preamble(sampler: Sampler) -> list[AnyEvent]:
        header = header_of(run, settings, sampler)
        price = price_of(settings, sampler.gpus, 0.0)
        header.price = price
        plan = plan_facts(settings.plan) if settings.plan not in (None, "auto") else []
        if settings.log and run.ranks.rank == 0:
            url = exporter.url if exporter is not None else None
            for line in start_lines(header, sampler.gpus, sampler.mapping, price=price, directory=run.directory, url=url):
                _log.info("%s", line)
        return [header, *plan]

    def on_report(report: Report) -> None:
        reason = enforcer.look(report)
        if reason is not None:
            monitor.stop_requested = reason
        for listener in monitor._listeners:
            listener(report)

    feeder = Feeder(
        queue=monitor._queue,
        pipeline=Pipeline(FanOut(sinks), ignore=settings.ignore, thresholds=settings.thresholds),
        writer=writer,
        make_sampler=make_sampler,
        host=_host_probe(monitor),
        workers=lambda: monitor.loader_workers,
        clock=clock,
        zero_s=monitor._zero_s,
        interval_s=settings.interval_s,
        counters=monitor._counters,
        on_report=on_report,
        learned=LearnedBudget(),
        keep_s=settings.keep_s,
        preamble=preamble,
        url=exporter.url if exporter is not None else None,
    )
    feeder.start()
    return feeder


def _identify(monitor: Monitor) -> None:
    run, settings = monitor.run, monitor.settings
    run.ranks = ranks_of(os.environ)
    run.id = run_id(os.environ, run.ranks)
    run.name = run_name(settings.run_name, fallback=run.name if run.name != "run" else None)
    now_unix_s = monitor._clock.unix_s()
    run.started_unix_s = now_unix_s
    try:
        run.host = host_of()
        run.process_started_s = min(0.0, process_started_unix_s() - now_unix_s)
    except Exception as err:  # noqa: BLE001 - the host's own data may be unreadable in odd containers
        monitor._fault("host", err)


def _writer(monitor: Monitor) -> TraceWriter | None:
    run, settings = monitor.run, monitor.settings
    if not settings.record:
        return None
    directory = run_directory(
        os.environ, run.ranks, name=run.name, identity=run.id, parent=settings.directory, own=settings.run_directory
    )
    try:
        prepare_directory(directory, run.ranks)
        writer = TraceWriter(directory, max_bytes=settings.record_max_bytes)
    except OSError as err:
        _log.warning("no record: %s; set TRAINBUDGET_DIR to a directory that can be written", err)
        return None
    run.directory = directory
    return writer


def _exporter(monitor: Monitor) -> Any | None:
    settings = monitor.settings
    from trainbudget.sinks.prometheus import PrometheusSink

    try:
        exporter = PrometheusSink(
            settings.listen, local_rank=monitor.run.ranks.local_rank or 0, strict=settings.strict_port, clock=monitor._clock
        )
    except TrainBudgetError as err:
        if settings.strict_port:
            _log.error("%s", err)
        else:
            _log.warning("no metrics page: %s", err)
        return None
    if exporter.notice:
        _log.info("%s", exporter.notice)
    return exporter


def _host_probe(monitor: Monitor) -> HostProbe | None:
    try:
        return HostProbe(monitor.run.directory or os.getcwd())
    except Exception as err:  # noqa: BLE001 - psutil fails in locked-down containers
        monitor._fault("host", err)
        return None
