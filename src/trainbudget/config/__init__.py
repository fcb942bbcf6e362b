"""Settings: argument, then TRAINBUDGET_* variable, then trainbudget.toml, then default; the first hit wins.

A bad argument raises at construction, before any training. A bad variable or file is said once and the next source is
taken: a typo in a shell must not stop a job that somebody queued for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainbudget.budget import Budget, Money, check_currency
from trainbudget.config.listen import DEFAULT_HOST, DEFAULT_LISTEN, DEFAULT_PORT, Listen, parse_listen
from trainbudget.config.reading import parse_setting
from trainbudget.config.sources import FindingNames, from_environ, from_file, known_names
from trainbudget.errors import ConfigError

__all__ = ["DEFAULT_HOST", "DEFAULT_LISTEN", "DEFAULT_PORT", "Listen", "Settings", "load", "parse_listen"]

ON_EXCEED = ("warn", "dry_run", "stop")
STOP_ON = ("cost", "run_time", "memory")
BACKENDS = ("auto", "nvml", "mock", "none")  # ... or the path of a trace
STEP_CLOCKS = ("auto", "cuda", "wall")
#: The feeder's looks: more often is a busy loop beside the training thread, more rarely is a report that is a minute old.
INTERVAL_S = (0.01, 60.0)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that can be set. Field names are the argument names and the keys of `trainbudget.toml`; the variable of
    `sample_period` is `TRAINBUDGET_SAMPLE_PERIOD`, and so on.

    Attributes:
        budget: what the job may cost, last and hold.
        price: for one GPU and hour, for example `"2.49 USD/h"`.
        on_exceed: `warn`, `dry_run` (say what a stop would do) or `stop`.
        stop_on: what may stop the run with `on_exceed="stop"`.
        ignore: finding codes that are muted.
        thresholds: `code.name` or `name` -> value.
        backend: `auto`, `nvml`, `mock[:SCENARIO]`, a trace's path, or `none`.
        sample_period_s: seconds between two GPU readings.
        step_clock: `auto`, `cuda` (events on the current stream) or `wall`.
        listen: `host:port` of the metrics page, or `off`.
        strict_port: a busy port is an error instead of a reason to take the next one.
        pushgateway: address of a Pushgateway; textfile: folder of node_exporter's textfile collector.
        otlp: endpoint for OTLP metrics over HTTP, or `auto` for the OTEL_EXPORTER_OTLP_* variables.
        notify: apprise addresses that are told of findings.
        run_name: of the run; default: the framework's own.
        directory: parent of run directories; run_directory: this run's own.
        record: whether facts are written down; record_max_bytes: per day and rank.
        plan: a plan file, `auto` or None.
        window_peaks: reset torch's peak counter at each reading (off: it is the user's).
        interval_s: seconds between two looks of the feeder at its queue.
        keep_s: how long a finished run that holds its GPU is watched.
    """

    budget: Budget | None = None
    price: Money | None = None
    on_exceed: str = "warn"
    stop_on: tuple[str, ...] = ("cost", "run_time")
    ignore: tuple[str, ...] = ()
    thresholds: Mapping[str, float] = field(default_factory=dict)
    backend: str = "auto"
    sample_period_s: float = 1.0
    step_clock: str = "auto"
    listen: str = DEFAULT_LISTEN
    strict_port: bool = False
    pushgateway: str | None = None
    textfile: str | None = None
    otlp: str | None = None
    notify: tuple[str, ...] = ()
    run_name: str | None = None
    directory: str | None = None
    run_directory: str | None = None
    record: bool = True
    record_max_bytes: float = 64 * 1024.0**2
    plan: str | None = None
    window_peaks: bool = False
    log: bool = True
    interval_s: float = 0.5
    keep_s: float = 24 * 3600.0
    disabled: bool = False

    def __post_init__(self) -> None:
        check_currency(self.budget, self.price)
        for name in self.stop_on:
            _one_of("stop_on", name, STOP_ON)
        _one_of("on_exceed", self.on_exceed, ON_EXCEED)
        _one_of("step_clock", self.step_clock, STEP_CLOCKS)
        if os.sep not in self.backend and not self.backend.endswith((".jsonl", ".gz")):
            _one_of("backend", self.backend.partition(":")[0], BACKENDS)
        if not 0.05 <= self.sample_period_s <= 3600.0:
            raise ConfigError(f"sample_period: {self.sample_period_s:g} s is outside 0.05 - 3600 s")
        if not INTERVAL_S[0] <= self.interval_s <= INTERVAL_S[1]:
            raise ConfigError(f"interval: {self.interval_s:g} s is outside {INTERVAL_S[0]:g} - {INTERVAL_S[1]:g} s")
        parse_listen(self.listen)


def load(
    arguments: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    warn: Callable[[str], None] = lambda text: None,
    findings: FindingNames | None = None,
) -> Settings:
    """The settings from all sources.

    Args:
        findings: every finding's code with the names of its thresholds; None = `ignore` and `thresholds` are not checked.

    Raises:
        ConfigError: (a ValueError) an argument is unknown or unusable.
    """
    environ = os.environ if environ is None else environ
    given: dict[str, Any] = {}
    for name, value in (arguments or {}).items():
        if value is not None:
            key, parsed = parse_setting(name, value)
            given[key], unknown = known_names(key, parsed, findings)
            if unknown:
                raise ConfigError(unknown[0])
    Settings(**given)
    values: dict[str, Any] = {}
    _merge_lenient(
        values, from_file(cwd or _working_directory(), warn), "trainbudget.toml", warn=warn, given=given, findings=findings
    )
    _merge_lenient(values, from_environ(environ, warn), "environment", warn=warn, given=given, findings=findings)
    return Settings(**{**values, **given})


def _working_directory() -> Path | None:
    """None where it has been deleted, or may not be looked at: then there is no file to read either."""
    try:
        return Path.cwd()
    except OSError:
        return None


def _merge_lenient(
    values: dict[str, Any],
    source_values: Mapping[str, Any],
    source: str,
    *,
    warn: Callable[[str], None],
    given: Mapping[str, Any],
    findings: FindingNames | None,
) -> None:
    """Add what can be used of a source. What does not go with the arguments (`given`) is not used either: they win."""
    for name, value in source_values.items():
        try:
            key, parsed = parse_setting(name, value)
            parsed, unknown = known_names(key, parsed, findings)
            Settings(**{**values, key: parsed, **given})
        except ConfigError as err:
            warn(f"{source}: {err}; it is ignored")
            continue
        except Exception as err:  # noqa: BLE001 - no value that somebody left in a shell may stop a job
            warn(f"{source}: {name}: {type(err).__name__}: {err}; it is ignored")
            continue
        for text in unknown:
            warn(f"{source}: {text}; it is ignored")
        values[key] = parsed


def _one_of(what: str, value: str, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise ConfigError(f"{what}: {value!r} is not one of {', '.join(allowed)}")
    return value
