"""What a run may cost, last and hold; and the one place where money, time and sizes are read from text."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import msgspec

from trainbudget.errors import ConfigError
from trainbudget.events import Bound, BudgetFact, Number

_NUMBER = r"([0-9][0-9_,]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)"
_SIGNS = {"$": "USD", "€": "EUR", "£": "GBP", "¥": "JPY", "₹": "INR"}
_MONEY = re.compile(rf"^\s*(?:([A-Za-z]{{3}}|[$€£¥₹])\s*)?{_NUMBER}\s*([A-Za-z]{{3}}|[$€£¥₹])?\s*$")
_PRICE_TAIL = re.compile(r"\s*(?:/|per)\s*(?:gpu\s*[-/ ]?\s*)?(?:h|hr|hour)s?\s*$", re.IGNORECASE)
_DURATION = re.compile(rf"{_NUMBER}\s*(d|days?|h|hr|hours?|min|minutes?|m|s|sec|seconds?)(?=[\s0-9]|$)", re.IGNORECASE)
_DURATION_S = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_SIZE = re.compile(rf"^\s*{_NUMBER}\s*([KMGT]?)(i?)B?\s*$", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


class Money(msgspec.Struct, frozen=True):
    amount: float
    currency: str | None = None


def parse_money(value: str | float, *, what: str = "cost") -> Money:
    """`40`, `"40 USD"`, `"$40"` -> amount and currency (None where none is given).

    Raises:
        ConfigError: not an amount, negative or not finite.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return Money(_positive(float(value), what))
    match = _MONEY.match(value) if isinstance(value, str) else None
    if match is None or (match[1] and match[3]):
        raise ConfigError(f"{what}: {value!r} is not an amount of money; write for example '40 USD'")
    sign = match[1] or match[3]
    return Money(_positive(_float(match[2]), what), _SIGNS.get(sign, sign.upper()) if sign else None)


def parse_price(value: str | float, *, what: str = "price") -> Money:
    """`"2.49 USD/h"`, `"$2.49 per hour"` or a number -> money for one GPU and hour."""
    if not isinstance(value, str):
        return parse_money(value, what=what)
    try:
        return parse_money(_PRICE_TAIL.sub("", value), what=what)
    except ConfigError:
        raise ConfigError(f"{what}: {value!r} is not a price or is negative; write for example '2.49 USD/h'") from None


def parse_duration_s(value: str | float, *, what: str = "run_time") -> float:
    """`3600`, `"8h"`, `"1 h 30 min"` -> seconds."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _positive(float(value), what)
    text = value.strip() if isinstance(value, str) else ""
    parts = list(_DURATION.finditer(text))
    if not parts or _DURATION.sub("", text).strip():
        raise ConfigError(f"{what}: {value!r} is not a duration; write for example '8h' or '1h 30min'")
    return _positive(sum(_float(p[1]) * _DURATION_S[p[2][0].lower()] for p in parts), what)


def parse_bytes(value: str | float, *, what: str = "memory_peak") -> float:
    """`"70 GiB"`, `"80GB"` or a number of bytes -> bytes. GB is 10^9, GiB is 2^30."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _positive(float(value), what)
    match = _SIZE.match(value) if isinstance(value, str) else None
    if match is None:
        raise ConfigError(f"{what}: {value!r} is not a size; write for example '70 GiB'")
    return _positive(_float(match[1]) * (1024 if match[3] else 1000) ** _POWERS[match[2].upper()], what)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What the whole job may need; what is None has no budget.

    Strings carry their unit, numbers are in the unit of the name: ``Budget(cost="40 USD", run_time="8h",
    memory_peak="70 GiB", step_time_s=0.95)``. After construction `run_time`, `memory_peak` and `step_time` are folded
    into `run_time_s`, `memory_peak_bytes` and `step_time_s`, and `cost` is a number of `currency`.

    Raises:
        ConfigError: (a ValueError) a value cannot be read, is negative, is given twice, has no such name, or currencies
            differ.
    """

    def __new__(cls, *values: object, **given: object) -> Budget:
        if values:
            raise ConfigError(f"budget: {values[0]!r} needs its name, for example Budget(cost={values[0]!r}); {_fields()}")
        for name in given:
            if name not in cls.__dataclass_fields__:
                raise ConfigError(f"budget: {name}: no such field{did_you_mean(name, cls.__dataclass_fields__)}; {_fields()}")
        return super().__new__(cls)

    cost: str | float | None = None
    currency: str | None = None
    run_time: str | float | None = None
    run_time_s: float | None = None
    memory_peak: str | float | None = None
    memory_peak_bytes: float | None = None
    step_time: str | float | None = None
    step_time_s: float | None = None

    def __post_init__(self) -> None:
        if self.cost is not None:
            money = parse_money(self.cost)
            if money.currency and self.currency and money.currency != self.currency.upper():
                raise ConfigError(f"cost: {money.currency} and {self.currency.upper()} are mixed; use one currency")
            self._set(cost=money.amount, currency=money.currency or (self.currency.upper() if self.currency else None))
        self._fold("run_time", "run_time_s", parse_duration_s)
        self._fold("memory_peak", "memory_peak_bytes", parse_bytes)
        self._fold("step_time", "step_time_s", parse_duration_s)

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _fold(self, text_name: str, name: str, parse: Callable[..., float]) -> None:
        text, number = getattr(self, text_name), getattr(self, name)
        if text is not None and number is not None:
            raise ConfigError(f"{text_name} and {name} are both given; give one")
        given = text if text is not None else number
        if given is not None:
            self._set(**{text_name: None, name: parse(given, what=name)})

    def fact(self, *, source: str = "given", **more: Number) -> BudgetFact:
        """This budget as a fact for the engine, each number marked with its source."""

        def bound(value: float | str | None) -> Number:
            return None if value is None else Bound(value=float(value), source=source)

        return BudgetFact(
            cost=bound(self.cost),
            currency=self.currency,
            run_time_s=bound(self.run_time_s),
            memory_peak_bytes=bound(self.memory_peak_bytes),
            step_time_s=bound(self.step_time_s),
            **more,  # type: ignore[arg-type]
        )


def check_currency(budget: Budget | None, price: Money | None) -> None:
    """Refuse a budget and a price of different currencies.

    Raises:
        ConfigError: they differ.
    """
    if budget is None or price is None or budget.currency is None or price.currency is None:
        return
    if budget.currency != price.currency:
        raise ConfigError(
            f"budget is in {budget.currency}, price in {price.currency}: currencies are never mixed; give both in one"
        )


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """`; did you mean NAME?`, or nothing where no name is like it."""
    near = get_close_matches(name, names, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _fields() -> str:
    return "a budget has cost, run_time, memory_peak and step_time"


def _float(text: str) -> float:
    return float(text.replace(",", "").replace("_", ""))


def _positive(value: float, what: str) -> float:
    if not math.isfinite(value) or value < 0:
        raise ConfigError(f"{what}: {value:g} must be a number >= 0")
    return value
