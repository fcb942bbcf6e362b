"""Quantities as a person reads them; unknown is said."""

from __future__ import annotations

import pytest

from trainbudget.wording.numbers import UNKNOWN, count, duration, money, percent, size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, UNKNOWN), (0.0, "0 ms"), (0.0031, "3.1 ms"), (0.031, "31 ms"), (0.0996, "0.10 s"), (0.94, "0.94 s"),
        (9.96, "10 s"), (45.4, "45 s"), (99.6, "1 min 40 s"), (132.0, "2 min 12 s"), (599.6, "10 min 00 s"), (610.0, "10 min"),
        (4860.0, "1 h 21 min"), (7200.0, "2 h 00 min"), (200000.0, "2.3 days"), (-5.0, "-5.0 s"),
    ],
)  # fmt: skip
def test_durations(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("amount", "currency", "text"),
    [(None, "USD", UNKNOWN), (0.42, "USD", "0.42 USD"), (0.0421, "USD", "0.042 USD"), (0.00421, "USD", "0.0042 USD"),
     (1234.5, "EUR", "1,234.50 EUR"), (0.0, "USD", "0.00 USD"), (2.0, None, "2.00")],
)  # fmt: skip
def test_money(amount, currency, text):
    assert money(amount, currency) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, UNKNOWN), (512 * 2**20, "512 MiB"), (48.9 * 2**30, "48.9 GiB"), (1500 * 2**30, "1,500.0 GiB")]
)
def test_sizes(value, text):
    assert size(value) == text


def test_ratios_and_counts():
    assert [percent(r) for r in (None, 0.0, 0.004, 0.21, 1.0)] == [UNKNOWN, "0 %", "0.4 %", "21 %", "100 %"]
    assert [count(n) for n in (None, 5000.0)] == [UNKNOWN, "5,000"]
