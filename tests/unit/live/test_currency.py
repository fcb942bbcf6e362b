"""Budget and price are in one currency: the given one's, never a guess beside a given one."""

from __future__ import annotations

import logging

import pytest

from trainbudget.budget import Budget
from trainbudget.config import load
from trainbudget.events import Gpu
from trainbudget.live.assembly import price_of, with_gpu
from trainbudget.live.identity import Ranks
from trainbudget.monitor import Monitor

CARDS = (Gpu(gpu=0, name="NVIDIA A100-SXM4-80GB", owned=True),)


@pytest.mark.parametrize(
    ("budget", "price", "currency"),
    [("40 EUR", 2.0, "EUR"), (40, "2 EUR/h", "EUR"), (40, 2.0, "USD"), ("40 EUR", "2 EUR/h", "EUR")],
)
def test_a_price_without_a_currency_is_in_the_budgets(tmp_path, budget, price, currency):
    settings = load({"budget": budget, "price": price}, environ={}, cwd=tmp_path)
    found = price_of(settings, CARDS, 0.0)
    assert (found.per_gpu_hour, found.currency) == (2.0, currency)
    planned = with_gpu({"tables": {}}, CARDS, settings, Ranks(world_size=2))
    assert planned["tables"]["gpu"] == {"name": CARDS[0].name, "count": 2, "price_per_hour": f"2.0 {currency}/h"}


def test_a_list_price_in_another_currency_is_not_used_and_said(tmp_path, caplog):
    settings = load({"budget": "40 EUR"}, environ={}, cwd=tmp_path)
    with caplog.at_level(logging.WARNING, logger="trainbudget"):
        assert price_of(settings, CARDS, 0.0) is None
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("the budget is in EUR, the list price of this card in USD: no money is counted")
    assert "'2.49 EUR/h'" in said


def test_a_budget_without_a_currency_is_in_the_prices():
    monitor = Monitor(
        budget=Budget(cost=4), price="2 EUR/h", backend="none", listen="off", record=False, log=False, interval=0.02
    )
    with monitor, monitor.step():
        pass
    assert (monitor.report.header.budget.currency, monitor.report.currency) == ("EUR", "EUR")
