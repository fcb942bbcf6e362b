"""The lines of a run: start, status, finding, closing table."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from trainbudget.engine.engine import Engine
from trainbudget.events import BackendError, BudgetFact, End, Event, Gpu, Header, Price, Reading, Step
from trainbudget.wording.closing import closing_table, verdict
from trainbudget.wording.start import start_lines
from trainbudget.wording.status import status_line

PRICE = Price(per_gpu_hour=36.0, currency="USD", source="given")


def a_report(*, price=PRICE, gpu=True, budget=None, backend="nvml", ended=True):
    engine = Engine()
    engine.feed(Header(run="night", backend=backend, price=price, budget=budget))
    if gpu:
        engine.feed(Gpu(gpu=0, name="A100", memory_total_bytes=80 * 2**30, owned=True))
    engine.feed(Event(t_s=0.0, event="train_begin"))
    for number in range(1, 101):
        if gpu:
            engine.feed(Reading(t_s=float(number), gpu=0, utilization_ratio=0.9, memory_used_bytes=float(40 * 2**30)))
        engine.feed(Step(t_s=float(number), step=number, start_s=number - 0.75, data_wait_s=0.25))
    if ended:
        engine.feed(End(t_s=100.0, outcome="finished"))
    return engine.report()


def test_the_verdict_is_one_line_with_money_where_it_is_known():
    assert verdict(a_report()).startswith("night finished: 100 steps in 1 min 40 s · 1.00 USD")
    with_budget = verdict(a_report(budget=BudgetFact(cost=2.0, currency="USD", source="given")))
    assert "1.00 of 2.00 USD allowed (50 % used)" in with_budget
    over = verdict(a_report(budget=BudgetFact(cost=0.8, currency="USD", source="given")))
    assert "1.00 of 0.80 USD allowed (25 % over)" in over
    without = verdict(a_report(price=None))
    assert "GPU-hours, no price" in without
    assert "USD" not in without


def test_the_table_sums_to_the_whole_and_says_what_is_simulated():
    table = closing_table(a_report(backend="mock"))
    lines = table.splitlines()
    total = next(line for line in lines if line.strip().startswith("total"))
    assert total.split()[0] == "total"
    assert [float(x) for x in total.split()[1:3]] == [1.67, 1.0]
    shares = [line for line in lines if line.endswith("%") and not line.strip().startswith("total")]
    assert sum(float(line.split()[-2]) for line in shares) == pytest.approx(100.0, abs=1.0)
    assert "simulated device" in table
    assert "simulated" not in closing_table(a_report())


def test_without_a_gpu_the_cpu_stands_in_and_is_said():
    table = closing_table(a_report(gpu=False, price=None))
    assert "no GPU: the CPU stands in" in table
    assert "unknown   gpu: no device data" in table
    assert "USD" not in table


def test_status_leaves_out_what_is_unknown():
    assert status_line(a_report(price=None, gpu=False)) == "0.75 s"
    budget = BudgetFact(cost=2.0, currency="USD", source="given", step_time_s=0.7)
    assert status_line(a_report(budget=budget)) == "mem 40.0/80.0G, 0.75 s (given 0.70 s), 1.00 of 2.00 USD"


def test_the_start_says_what_is_watched_and_how_to_switch_it_off(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mapping = SimpleNamespace(owned=(0,), ambiguous="two cards fit")
    first, second = start_lines(
        Header(backend="mock", budget=BudgetFact(run_time_s=28800.0)), [Gpu(gpu=0, name="A100", uuid="GPU-12345678-9")], mapping,
        price=PRICE, directory=Path("runs/x"), url="http://127.0.0.1:9837",
    )  # fmt: skip
    for part in (
        "GPU 0 (A100, GPU-12345678…)",
        "[simulated device]",
        "8 h 00 min",
        "36.00 USD/h given",
        "runs/x",
        ":9837",
        "TRAINBUDGET_DISABLED=1",
    ):
        assert part in first
    assert "two cards fit" in second


def test_without_anything_the_start_says_so():
    header = Header(backend="none", backend_error=BackendError(code="library_not_found", text="no driver library"))
    (text,) = start_lines(header, [], None, price=None, directory=None, url=None)
    for part in ("no GPU data (no driver library)", "learned from the first steps", "no price", "no record", "no metrics page"):
        assert part in text


def a_short_report(*, wait_s: float, steps: int):
    engine = Engine()
    engine.feed(Header(run="smoke", price=PRICE))
    engine.feed(Gpu(gpu=0, name="A100", memory_total_bytes=80 * 2**30, owned=True))
    engine.feed(Event(t_s=0.0, event="train_begin"))
    for number in range(1, steps + 1):
        engine.feed(Step(t_s=float(number), step=number, start_s=number - 1 + wait_s, data_wait_s=wait_s))
    engine.feed(End(t_s=float(steps), outcome="finished"))
    return engine.report()


def test_a_run_too_short_for_findings_names_its_largest_waste():
    report = a_short_report(wait_s=0.4, steps=15)
    assert report.findings == ()
    (line,) = [text for text in closing_table(report).splitlines() if text.startswith("  mostly")]
    assert "waiting for data: 37 % of the run (0.37 s before each step)" in line  # the first wait is start-up
    assert "mostly" not in closing_table(a_short_report(wait_s=0.02, steps=15))
