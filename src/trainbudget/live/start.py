"""Starting a monitor: the threads are made at once, everything that can keep one waiting is made on the feeder's."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from trainbudget.config import parse_listen
from trainbudget.engine.report import Report
from trainbudget.errors import ConfigError, TrainBudgetError
from trainbudget.events import AnyEvent, Price
from trainbudget.live.assembly import backend_factory, header_of, price_of
from trainbudget.live.console import add_handler
from trainbudget.live.enforce import Enforcer
from trainbudget.live.expectations import Expectations
from trainbudget.live.feeder import Feeder, Parts
from trainbudget.live.identity import attempt_of, prepare_directory, rank_directory, ranks_of, run_directory, run_id, run_name
from trainbudget.live.pipeline import Pipeline
from trainbudget.live.plan_facts import plan_facts
from trainbudget.live.probes.host import HostProbe, host_of, process_started_unix_s
from trainbudget.live.probes.process_group import own_ranks
from trainbudget.live.sampler import Sampler
from trainbudget.sinks.base import FanOut, Sink
from trainbudget.sinks.log import LogSink
from trainbudget.sinks.record import RecordInUse, RecordSink, TraceWriter
from trainbudget.wording.start import start_lines

if TYPE_CHECKING:
    from trainbudget.live.assembly import RunFacts
    from trainbudget.monitor.life import Life

_log = logging.getLogger("trainbudget")
_T = TypeVar("_T")

#: Directories tried after one that another live run writes in: several trainings under one TRAINBUDGET_RUN_DIR.
_DIRECTORY_TRIES = 999


def start_feeder(monitor: Life) -> Feeder:
    """Make and start the threads of a monitor.

    Raises:
        RuntimeError: the system gives no thread.
    """
    settings, run, clock = monitor.settings, monitor.run, monitor._clock
    run.ranks = own_ranks(run.given_ranks)
    run.id = run_id(os.environ, run.ranks)
    run.name = run_name(settings.run_name, fallback=run.name if run.name != "run" else None)
    run.started_unix_s = clock.unix_s() - (clock.now_s() - monitor._zero_s)
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

    def on_report(report: Report) -> None:
        reason = enforcer.look(report)
        if reason is not None:
            monitor.stop_requested = reason
        for listener in tuple(monitor._listeners):
            _attempt(monitor, "listener", functools.partial(listener, report))

    feeder = Feeder(
        queue=monitor._queue,
        assemble=lambda: _parts(monitor),
        make_sampler=make_sampler,
        preamble=lambda sampler, url: _preamble(monitor, sampler, url),
        workers=lambda: monitor.loader_workers,
        clock=clock,
        zero_s=monitor._zero_s,
        interval_s=settings.interval_s,
        counters=monitor._counters,
        on_report=on_report,
        learned=Expectations(),
        moment=monitor._training.moment,
        keep_s=settings.keep_s,
    )
    feeder.start()
    return feeder


def require_free_port(listen: str) -> None:
    """With `strict_port` a busy port is a mistake of the caller, told before any training.

    Raises:
        ConfigError: somebody listens there, or nobody may.
    """
    import socket

    where = parse_listen(listen)
    if where is None:
        return
    host, port = where
    port += ranks_of(os.environ).local_rank or 0 if port else 0  # each local rank has its own
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as err:  # a port beyond 65535 overflows
            reason = getattr(err, "strerror", None) or err
            raise ConfigError(f"listen: {listen} cannot be had ({reason}) and strict_port is set") from None


# --- on the feeder's thread


def _parts(monitor: Life) -> Parts:
    """The record, the sinks, the host probe: each that fails leaves the others working."""
    settings, run = monitor.settings, monitor.run
    if settings.log:
        add_handler(_log)
    run.host = _attempt(monitor, "host", host_of)
    started = _attempt(monitor, "host", process_started_unix_s)
    first = _claim_process_start()
    if first and run.ranks.rank == 0:  # variables and files are the job's: once is enough
        for text in monitor._warnings:
            _log.warning("%s", text)
    run.process_started_s = min(0.0, started - run.started_unix_s) if started is not None and first else 0.0
    writer = _attempt(monitor, "record", lambda: _writer(monitor)) if settings.record else None
    sinks: list[Sink] = [LogSink(_log)] if settings.log else []
    if writer is not None:
        sinks.append(RecordSink(writer.directory))
    exporter = _attempt(monitor, "metrics page", lambda: _exporter(monitor))
    if exporter is not None:
        sinks.append(exporter)
    sinks += _attempt(monitor, "outputs", lambda: _outputs(monitor)) or []
    return Parts(
        pipeline=Pipeline(FanOut(sinks), ignore=settings.ignore, thresholds=settings.thresholds),
        writer=writer,
        host=_attempt(monitor, "host", lambda: HostProbe(run.directory or os.getcwd())),
        url=exporter.url if exporter is not None else None,
    )


def _preamble(monitor: Life, sampler: Sampler, url: str | None) -> list[AnyEvent]:
    """The header, with the price, and what a plan says; and the lines a run starts with."""
    settings, run = monitor.settings, monitor.run
    header = header_of(run, settings, sampler)
    header.price = price = _attempt(monitor, "price", lambda: _price(monitor, sampler))
    budget = header.budget
    if budget is not None and budget.cost is not None and budget.currency is None and price is not None:
        budget.currency = price.currency  # a number alone is meant in the money that is spent
    plan: list[AnyEvent] = []
    if settings.plan not in (None, "auto"):
        plan = _attempt(monitor, "plan", lambda: plan_facts(str(settings.plan))) or []
    if settings.log and run.ranks.rank == 0:
        _attempt(monitor, "log", lambda: _say_start(monitor, sampler, header, url))
    return [header, *plan]


def _price(monitor: Life, sampler: Sampler) -> Price | None:
    return price_of(monitor.settings, sampler.gpus, 0.0)


def _say_start(monitor: Life, sampler: Sampler, header: Any, url: str | None) -> None:
    directory = monitor.run.directory
    plan = monitor.settings.plan
    lines = start_lines(header, sampler.gpus, sampler.mapping, price=header.price, directory=directory, url=url, plan=plan)
    for line in lines:
        _log.info("%s", line)


def _attempt(monitor: Life, what: str, make: Callable[[], _T]) -> _T | None:
    """What `make` makes, or None: said once, training and the other parts go on."""
    try:
        return make()
    except TrainBudgetError as err:
        monitor._counters.note(logging.WARNING, f"{err}; training goes on without it")
    except Exception as err:  # noqa: BLE001 - any part may fail in ways nobody thought of
        monitor._counters.fault(what, err)
    return None


def _claim_process_start() -> bool:
    """Whether this is the process's first monitor: only that one answers for the time since the process began.

    The mark belongs to the process, not to a module: it is gone in a child, and there once however often we are imported.
    """
    if _claim() in os.environ:
        return False
    os.environ[_claim()] = "1"
    return True


def leave_no_trace(run: RunFacts) -> None:
    """A run that gives way to another one of its process: its record goes, the time since the process began is free again."""
    os.environ.pop(_claim(), None)
    directory, run.directory = run.directory, None
    if directory is not None:
        for path in (*directory.glob("trace*.jsonl*"), *directory.glob("summary.json*")):
            path.unlink(missing_ok=True)
        with suppress(OSError):  # others' files, or other ranks, are there too
            directory.rmdir()


def _claim() -> str:
    return f"_TRAINBUDGET_CLAIMED_{os.getpid()}"


def _writer(monitor: Life) -> TraceWriter | None:
    run, settings = monitor.run, monitor.settings
    job = run_directory(name=run.name, identity=run.id, parent=settings.directory, own=settings.run_directory)
    first = attempt_of(os.environ)  # all ranks of an attempt write side by side, whichever of them the last one had
    for attempt in range(first, first + _DIRECTORY_TRIES):
        directory = rank_directory(job, run.ranks, attempt)
        if any(directory.glob("trace*.jsonl*")):
            continue  # of an earlier attempt under the same name: its seconds are its own
        try:
            prepare_directory(directory, run.ranks)
            writer = TraceWriter(directory, max_bytes=settings.record_max_bytes)
        except RecordInUse:
            continue
        except OSError as err:
            _log.warning("no record: %s; set TRAINBUDGET_DIR to a directory that can be written", err)
            return None
        run.directory = directory
        return writer
    _log.warning("no record: %s and its neighbours are in use by other runs", job)
    return None


def _outputs(monitor: Life) -> list[Sink]:
    from trainbudget.sinks.outputs import open_outputs

    settings = monitor.settings
    return open_outputs(
        pushgateway=settings.pushgateway,
        textfile=settings.textfile,
        otlp=settings.otlp,
        notify=settings.notify,
        clock=monitor._clock,
        warn=lambda text: _log.warning("%s; training goes on without it", text),
    )


def _exporter(monitor: Life) -> Any | None:
    settings = monitor.settings
    from trainbudget.sinks.prometheus import PrometheusSink

    exporter = PrometheusSink(
        settings.listen, local_rank=monitor.run.ranks.local_rank or 0, strict=settings.strict_port, clock=monitor._clock
    )
    if exporter.notice:
        _log.info("%s", exporter.notice)
    return exporter
