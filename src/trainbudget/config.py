"""Settings: argument, then TRAINBUDGET_* variable, then trainbudget.toml, then default; the first hit wins.

A bad argument raises at construction, before any training. A bad variable or file is said once and the next source is
taken: a typo in a shell must not stop a job that somebody queued for.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from trainbudget.budget import Budget, Money, check_currency, nearest, parse_bytes, parse_duration_s, parse_price
from trainbudget.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - exercised on Python 3.10 only
    import tomli as tomllib

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 9837
DEFAULT_LISTEN = f"{DEFAULT_HOST}:{DEFAULT_PORT}"
ON_EXCEED = ("warn", "dry_run", "stop")
STOP_ON = ("cost", "run_time", "memory")
BACKENDS = ("auto", "nvml", "mock", "none")  # ... or the path of a trace
STEP_CLOCKS = ("auto", "cuda", "wall")
#: The feeder's looks: more often is a busy loop beside the training thread, more rarely is a report that is a minute old.
INTERVAL_S = (0.01, 60.0)

#: Code -> names of its thresholds.
FindingNames = Mapping[str, Collection[str]]

_LISTEN = re.compile(
    r"(?:(?P<only_port>[0-9]{1,5})|(?:\[(?P<six>[0-9a-fA-F:.]+)\]|(?P<host>[A-Za-z_][\w.-]*|[0-9]+(?:\.[0-9]+){3}))?(?::(?P<port>[0-9]{1,5}))?)",
    re.ASCII,
)


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
            key, parsed = _parse(name, value)
            given[key], unknown = _known(key, parsed, findings)
            if unknown:
                raise ConfigError(unknown[0])
    Settings(**given)
    values: dict[str, Any] = {}
    _merge_lenient(
        values, _from_file(cwd or _working_directory(), warn), "trainbudget.toml", warn=warn, given=given, findings=findings
    )
    _merge_lenient(values, _from_environ(environ, warn), "environment", warn=warn, given=given, findings=findings)
    return Settings(**{**values, **given})


class Listen(NamedTuple):
    """Where to listen; port 0 takes any free one."""

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT


def parse_listen(text: str) -> Listen | None:
    """`host:port`, `:port`, `port`, `[::1]:port` or `host`; `off` or nothing is None.

    Raises:
        ConfigError: it is none of these.
    """
    text = text.strip()
    if text.lower() in ("off", "none", "false", "no", ""):
        return None
    match = _LISTEN.fullmatch(text)
    port = (match["port"] or match["only_port"] or "") if match else ""
    host = (match["six"] or match["host"] or DEFAULT_HOST) if match else ""
    # A name's parts are 1 to 63 characters (RFC 1035, 2.3.4); others fail deep inside the resolver.
    named = ":" in host or all(0 < len(part) <= 63 for part in host.removesuffix(".").split("."))
    if match is None or not named or (port and int(port) > 65535):
        raise ConfigError(f"listen: {text[:80]!r} is not host:port or 'off'; write for example {DEFAULT_LISTEN}")
    return Listen(host, int(port) if port else DEFAULT_PORT)


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
            key, parsed = _parse(name, value)
            parsed, unknown = _known(key, parsed, findings)
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


def _known(key: str, parsed: Any, findings: FindingNames | None) -> tuple[Any, list[str]]:
    """Of `ignore` and `thresholds` what names a finding, and a sentence for each name that does not."""
    if findings is None or key not in ("ignore", "thresholds"):
        return parsed, []
    if key == "ignore":
        wrong = [name for name in parsed if name not in findings]
        said = [f"ignore: {name!r} is no finding{_nearest(name, findings)}" for name in wrong]
        return tuple(name for name in parsed if name in findings), said
    both = {f"{code}.{name}" for code, names in findings.items() for name in names}
    known = both | {name for names in findings.values() for name in names}
    said = []
    for name in parsed:
        if name not in known:
            code, dot, _ = name.partition(".")
            candidates = {n for n in both if n.startswith(f"{code}.")} if dot and code in findings else known
            of_code = "" if candidates is known or candidates else f": {code} has none"
            said.append(f"thresholds: {name!r} is no threshold{of_code}{_nearest(name, candidates)}")
    return {name: value for name, value in parsed.items() if name in known}, said


def _from_environ(environ: Mapping[str, str], warn: Callable[[str], None]) -> dict[str, Any]:
    """Variables that name a setting; `TRAINBUDGET_DIR`, `TRAINBUDGET_RUN_DIR` and others of their own are among them."""
    for variable in sorted(environ):
        if variable.startswith("TRAINBUDGET_") and variable not in _VARIABLES and variable not in _OTHER_VARIABLES:
            warn(f"environment: {variable}: no such variable{_nearest(variable, _VARIABLES)}; it is ignored")
    return {key: environ[name] for name, key in _VARIABLES.items() if environ.get(name, "").strip() != ""}


def _from_file(start: Path | None, warn: Callable[[str], None]) -> dict[str, Any]:
    """`trainbudget.toml` in the directory or its parents up to the repository's root, else `[tool.trainbudget]`."""
    if start is None:
        return {}
    folders = [start, *start.parents]
    for place, folder in enumerate(folders):
        if os.path.exists(folder / ".git"):  # pathlib's own raises where a folder may not be entered
            folders = folders[: place + 1]
            break
    for name, table in (("trainbudget.toml", ()), ("pyproject.toml", ("tool", "trainbudget"))):
        for folder in folders:
            path = folder / name
            if not os.path.isfile(path):
                continue
            try:
                content: Any = tomllib.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError, RecursionError) as err:
                if name == "trainbudget.toml":
                    why = "it is nested too deeply" if isinstance(err, RecursionError) else err
                    warn(f"{path}: {why}; it is ignored")
                continue
            for key in table:
                content = content.get(key, {}) if isinstance(content, dict) else {}
            if content and isinstance(content, Mapping):
                return dict(content)
    return {}


def _parse(name: str, value: Any) -> tuple[str, Any]:
    name = _ALIASES.get(name, name)
    parse = _PARSERS.get(name)
    if parse is None:
        raise ConfigError(f"{name}: no such setting{_nearest(name, _PARSERS)}")
    try:
        return _FIELD_OF.get(name, name), parse(value)
    except (TypeError, ValueError, OverflowError) as err:
        if isinstance(err, ConfigError):
            raise
        raise ConfigError(f"{name}: {err}") from None


def _nearest(name: str, names: Iterable[str]) -> str:
    near = nearest(name, names)
    return f"; did you mean {near}?" if near else ""


def _one_of(what: str, value: str, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise ConfigError(f"{what}: {value!r} is not one of {', '.join(allowed)}")
    return value


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("0", "false", "no", "off", ""):
        return False
    raise ConfigError(f"{value!r} is neither yes nor no")


def _names(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return tuple(str(part) for part in value)


def _budget(value: Any) -> Budget:
    if isinstance(value, Budget):
        return value
    if isinstance(value, Mapping):
        try:
            return Budget(**value)
        except TypeError as err:
            raise ConfigError(f"budget: {err}") from None
    return Budget(cost=value)  # a plain amount of money


def _thresholds(value: Any) -> dict[str, float]:
    if isinstance(value, str):
        value = dict(part.split("=", 1) for part in _names(value) if "=" in part)
    flat: dict[str, float] = {}
    try:
        for name, number in dict(value).items():
            if isinstance(number, Mapping):
                flat.update({f"{name}.{inner}": float(x) for inner, x in number.items()})
            else:
                flat[str(name)] = float(number)
    except (TypeError, ValueError):
        raise ConfigError(f"thresholds: {value!r} is not a table of numbers") from None
    return flat


def _seconds(what: str) -> Callable[[Any], float]:
    return lambda value: parse_duration_s(float(value) if _numeric(value) else value, what=what)


def _bytes(what: str) -> Callable[[Any], float]:
    return lambda value: parse_bytes(float(value) if _numeric(value) else value, what=what)


def _numeric(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _text(value: Any) -> str:
    return str(value)


_PARSERS: dict[str, Callable[[Any], Any]] = {
    "budget": _budget,
    "price": lambda v: v if isinstance(v, Money) else parse_price(v),
    "on_exceed": _text,
    "stop_on": _names,
    "ignore": _names,
    "thresholds": _thresholds,
    "backend": _text,
    "sample_period": _seconds("sample_period"),
    "step_clock": _text,
    "listen": _text,
    "strict_port": _boolean,
    "pushgateway": _text,
    "textfile": _text,
    "otlp": _text,
    "notify": _names,
    "run_name": _text,
    "directory": _text,
    "run_directory": _text,
    "record": _boolean,
    "record_max": _bytes("record_max"),
    "plan": _text,
    "window_peaks": _boolean,
    "log": _boolean,
    "interval": _seconds("interval"),
    "keep": lambda v: min(_seconds("keep")(v), threading.TIMEOUT_MAX),  # "for ever" is what nobody can wait for
    "disabled": _boolean,
}
_FIELD_OF = {
    "sample_period": "sample_period_s",
    "record_max": "record_max_bytes",
    "interval": "interval_s",
    "keep": "keep_s",
}
_ALIASES = {**{v: k for k, v in _FIELD_OF.items()}, "strict": "strict_port", "dir": "directory", "run_dir": "run_directory"}
_VARIABLES = {
    **{f"TRAINBUDGET_{name.upper()}": name for name in _PARSERS},
    "TRAINBUDGET_DIR": "directory",
    "TRAINBUDGET_RUN_DIR": "run_directory",
}
#: Variables that are no settings: of a job, of the planner, of the Compose stack, of the project's own tests.
_OTHER_VARIABLES = frozenset(
    f"TRAINBUDGET_{name}"
    for name in (
        *("RUN_ID", "DEBUG", "INSTANCE", "PRICING"),
        *("PLAN_DEBUG", "PLAN_SCRATCH", "LAUNCHED_FSDP", "LAUNCHED_DEEPSPEED"),
        *("PORT", "TARGETS"),
        *("FIELD_TRACES", "HEALTHY_HOURS", "SWEEP_EVERY", "TEST_EXAMPLES", "UPDATE_GOLDEN"),
    )
)
