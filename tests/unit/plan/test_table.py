"""The screens: aligned, within the width, money and verdict on them, plain ASCII where asked."""

from __future__ import annotations

import re

import pytest

from trainbudget.plan import table
from trainbudget.plan.script.protocol import Facts
from unit.plan.planning import FakeTracer, planned, request


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_no_line_of_memory_is_wider_than_the_terminal(width):
    text = table.render_plan(planned(request(steps=100)), width=width)
    memory = text.split("\n\n")[1].splitlines()
    assert max(map(len, memory)) <= max(width, 60)


def test_categories_sum_to_the_device_line():
    text = table.render_plan(planned(request(steps=100)), width=100)
    sizes = [float(m.group(1)) for m in re.finditer(r"^  [a-zC][\w ,]+?\s+([\d.]+) GiB", text, re.M)]
    *parts, device = sizes
    assert sum(parts) == pytest.approx(device, abs=0.05 * len(parts))


def test_the_verdict_the_price_and_its_source_are_shown():
    text = table.render_plan(planned(request(steps=1000)))
    assert re.search(r"head-room [\d.]+ GiB · fits", text)
    assert re.search(r"cost   [\d.]+ USD \([\d.]+ - [\d.]+\) at 2.00 USD/h a GPU   \[given\]", text)
    assert "1,000 steps" in text


def test_what_does_not_fit_shows_by_how_much_and_what_to_change():
    text = table.render_plan(planned(request(micro_batch=16)))
    assert "does not fit" in text
    assert "short by" in text
    assert "to make it fit" in text


def test_changes_that_were_not_looked_for_are_not_said_to_be_missing():
    text = table.render_plan(planned(request(micro_batch=16), search=False))
    assert "no change was tried (--no-search)" in text


def test_no_price_is_said_not_zero():
    text = table.render_plan(planned(request(gpu="RTX-4090", price=None, micro_batch=1, steps=10)))
    assert "no dated price for RTX-4090" in text
    assert "0.00" not in text


def test_longest_batches_when_asked():
    facts = Facts(framework="huggingface", title="x", spec={}, long_batches=[(412, 8192), (17, 8000)])
    text = table.render_plan(planned(request(), FakeTracer(facts)), batches=True)
    assert "step 412: 8,192 tokens" in text


def test_ascii_terminals_get_ascii():
    assert table.render_plan(planned(request(steps=10)), unicode=False).isascii()


def test_comparison_is_cheapest_first_and_keeps_what_does_not_fit():
    plans = [(n, planned(request(gpu=n, price=None, steps=1000))) for n in ("L4", "H100", "A100-80GB")]
    text = table.render_comparison([*plans, ("T9", "unknown")])
    names = [line.split()[0] for line in text.splitlines()]
    assert names == ["card", "A100-80GB", "H100", "L4", "T9"] or names == ["card", "H100", "A100-80GB", "L4", "T9"]
    assert "does not fit" in text


@pytest.mark.parametrize(
    ("value", "text"), [(5, "5 s"), (41, "41 s"), (720, "12 min"), (4860, "1 h 21 min"), (3600 * 76, "3 d 4 h"), (0.4, "0.4 s")]
)
def test_durations(value, text):
    assert table.span(value) == text
