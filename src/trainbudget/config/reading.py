"""Settings' values read from text, numbers and tables, by the setting's name."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from trainbudget.budget import Budget, Money, did_you_mean, parse_bytes, parse_duration_s, parse_price
from trainbudget.errors import ConfigError


def parse_setting(name: str, value: Any) -> tuple[str, Any]:
    """The field of `Settings` that a name or its short form means, and the value it gets.

    Raises:
        ConfigError: there is no such setting, or the value cannot be read.
    """
    name = _ALIASES.get(name, name)
    parse = PARSERS.get(name)
    if parse is None:
        raise ConfigError(f"{name}: no such setting{did_you_mean(name, PARSERS)}")
    try:
        return FIELD_OF.get(name, name), parse(value)
    except (TypeError, ValueError, OverflowError) as err:
        if isinstance(err, ConfigError):
            raise
        raise ConfigError(f"{name}: {err}") from None


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


PARSERS: dict[str, Callable[[Any], Any]] = {
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
FIELD_OF = {
    "sample_period": "sample_period_s",
    "record_max": "record_max_bytes",
    "interval": "interval_s",
    "keep": "keep_s",
}
_ALIASES = {**{v: k for k, v in FIELD_OF.items()}, "strict": "strict_port", "dir": "directory", "run_dir": "run_directory"}
