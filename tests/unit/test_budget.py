"""Money, time and sizes read from text; what cannot be meant is refused."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle

import pytest

from trainbudget.budget import Budget, Money, check_currency, parse_bytes, parse_duration_s, parse_money, parse_price
from trainbudget.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "amount", "currency"),
    [
        (40, 40.0, None), (2.5, 2.5, None), ("40", 40.0, None), ("40 USD", 40.0, "USD"), ("usd 40", 40.0, "USD"),
        ("$40", 40.0, "USD"), ("40€", 40.0, "EUR"), ("1,234.50 EUR", 1234.5, "EUR"), ("0", 0.0, None), ("1e3 JPY", 1000.0, "JPY"),
    ],
)  # fmt: skip
def test_money(text, amount, currency):
    assert parse_money(text) == Money(amount, currency)


@pytest.mark.parametrize(
    "text", ["2.49 USD/h", "$2.49/h", "2.49 USD per hour", "USD 2.49 / GPU-hour", "2.49 USD/gpu/h", "2.49usd/hr"]
)
def test_price_an_hour(text):
    assert parse_price(text) == Money(2.49, "USD")


@pytest.mark.parametrize("bad", ["forty", "40 US", "-40 USD", "USD 40 EUR", "", "40 USD/h", True, None, math.nan, math.inf, -1])
def test_what_is_no_money(bad):
    with pytest.raises(ConfigError, match="cost"):
        parse_money(bad)


@pytest.mark.parametrize("bad", ["-2 USD/h", "2 USD/day", "cheap", -1.0, math.nan])
def test_what_is_no_price(bad):
    with pytest.raises(ConfigError, match="price"):
        parse_price(bad)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(3600, 3600), ("8h", 28800), ("1 h 30 min", 5400), ("1h30m", 5400), ("2 days", 172800), ("90 s", 90), ("1.5 hours", 5400),
     ("0.5s", 0.5), ("1d 2h", 93600)],
)  # fmt: skip
def test_durations(text, seconds):
    assert parse_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("bad", ["soon", "8", "8 weeks", "-8h", "", "h", -1, math.inf, None, True])
def test_what_is_no_duration(bad):
    with pytest.raises(ConfigError, match="run_time"):
        parse_duration_s(bad)


@pytest.mark.parametrize(
    ("text", "size"),
    [("70 GiB", 70 * 2**30), ("80GB", 80e9), ("512 MiB", 512 * 2**20), (1024, 1024), ("1.5TiB", 1.5 * 2**40), ("10 kB", 1e4)],
)
def test_sizes(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("bad", ["large", "-1 GiB", "1 PiB", "", -5, math.nan])
def test_what_is_no_size(bad):
    with pytest.raises(ConfigError, match="memory_peak"):
        parse_bytes(bad)


def test_a_budget_folds_text_into_numbers():
    budget = Budget(cost="40 USD", run_time="8h", memory_peak="70 GiB", step_time_s=0.95)
    assert (budget.cost, budget.currency) == (40.0, "USD")
    assert (budget.run_time_s, budget.memory_peak_bytes, budget.step_time_s) == (28800.0, 70 * 2**30, 0.95)
    fact = budget.fact()
    assert (fact.cost.value, fact.cost.source, fact.currency) == (40.0, "given", "USD")
    assert fact.tokens_per_s is None


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"cost": "40 USD", "currency": "EUR"}, "mixed"),
        ({"run_time": "8h", "run_time_s": 5}, "both given"),
        ({"memory_peak": "1 GiB", "memory_peak_bytes": 5}, "both given"),
        ({"cost": -1}, ">= 0"),
        ({"step_time": "fast"}, "not a duration"),
        ({"memory": "40 GiB"}, "memory: no such field; did you mean memory_peak"),
        ({"runtime": "8h"}, "did you mean run_time"),
        ({"euros": 40}, "no such field; a budget has cost, run_time, memory_peak and step_time"),
    ],
)
def test_a_budget_that_cannot_be_meant(arguments, why):
    with pytest.raises(ValueError, match=why):
        Budget(**arguments)


def test_currencies_are_never_mixed_and_a_missing_one_fits_any():
    check_currency(Budget(cost=4), Money(1.0, "USD"))
    check_currency(Budget(cost="4 EUR"), Money(1.0))
    check_currency(None, Money(1.0, "USD"))
    with pytest.raises(ConfigError, match=r"EUR.*USD"):
        check_currency(Budget(cost="4 EUR"), Money(1.0, "USD"))


def test_a_number_without_its_name_is_told_how_to_write_it():
    with pytest.raises(ConfigError, match=r"Budget\(cost='40 USD'\)"):
        Budget("40 USD")


def test_a_budget_can_be_copied_and_pickled():
    budget = Budget(cost="40 USD", run_time="8h")
    assert pickle.loads(pickle.dumps(budget)) == copy.deepcopy(budget) == dataclasses.replace(budget) == budget
