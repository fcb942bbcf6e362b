"""The alerts somebody is woken by or gets a bill from: exact words, numbers, money, and when they are silent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rules.promtool import firing, input_series, needs_promtool, run_cases, write_rules
from trainbudget.catalog.alert_spec import RUNBOOK_URL
from trainbudget.catalog.alerts import ALERTS
from trainbudget.catalog.code_alerts import alert_name
from trainbudget.catalog.gpu_metrics import LOST, OOM_FORECAST
from trainbudget.catalog.money_metrics import (
    BUDGET_COST,
    COST,
    FINDING_ACTIVE,
    GPU_SECONDS,
    PRICE,
    PROJECTED_COST,
    WASTED_SECONDS,
)
from trainbudget.catalog.recording import LIVE_STATE, SPEND, VANISHED, WASTED
from trainbudget.catalog.run_metrics import BUDGET_STEPS, CHARGED_GPUS, REPORT_TIME, RUN_STATE, STATES, STEPS_DONE

pytestmark = [needs_promtool, pytest.mark.servers]

A = {"run": "a", "rank": "0"}
FRESH = {REPORT_TIME.at(**A): "0+60x60"}
PRICED = {**FRESH, CHARGED_GPUS.at(**A): "8x60", PRICE.at(**A, currency="USD"): "2.5x60"}


def case(series: dict[str, str], *expectations: dict[str, Any], alerts: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    return {
        "interval": "1m",
        "input_series": input_series(series),
        "promql_expr_test": list(expectations),
        "alert_rule_test": list(alerts),
    }


def value(expression: str, at: str, *samples: tuple[str, float]) -> dict[str, Any]:
    return {"expr": expression, "eval_time": at, "exp_samples": [{"labels": labels, "value": v} for labels, v in samples]}


def test_out_of_memory_soon_says_which_gpu_when_and_what_is_at_stake(tmp_path: Path) -> None:
    series = {**PRICED, OOM_FORECAST.at(**A, gpu="3"): "900x60", COST.at(**A, currency="USD"): "0+0.5x60"}
    alert = {
        "eval_time": "20m",
        "alertname": "TrainbudgetOutOfMemorySoon",
        "exp_alerts": [
            {
                "exp_labels": {**A, "gpu": "3", "severity": "critical", "route": "page"},
                "exp_annotations": {
                    "summary": "a: GPU 3 of rank 0 is out of memory in about 15m 0s.",
                    "description": "Memory grows, or a batch or phase is coming that does not fit. 10.00 USD has been spent so "
                    "far; what is not in a checkpoint is lost.",
                    "runbook_url": f"{RUNBOOK_URL}#trainbudgetoutofmemorysoon",
                },
            }
        ],
    }
    run_cases(tmp_path, [case(series, alerts=(alert,))])


def test_cost_over_budget_is_a_ticket_until_the_money_is_spent_then_a_page(tmp_path: Path) -> None:
    series = {
        **PRICED,
        PROJECTED_COST.at(**A, currency="USD"): "52.5x60",
        BUDGET_COST.at(**A, currency="USD"): "40x60",
        COST.at(**A, currency="USD"): "0+1x60",
        FINDING_ACTIVE.at(**A, code="cost_over_budget", severity="warning"): "1x40 0x20",
        FINDING_ACTIVE.at(**A, code="cost_over_budget", severity="critical"): "_x40 1x20",
    }
    words = "a: {} 52.50 USD in the end, {} USD spent of 40.00 USD."
    alert = next(a for a in ALERTS if a.code == "cost_over_budget")
    tests = tuple(
        {
            "eval_time": at,
            "alertname": alert.name,
            "exp_alerts": [
                {
                    "exp_labels": {"run": "a", "code": "cost_over_budget", "severity": severity, "route": route},
                    "exp_annotations": {
                        "summary": words.format(f"{alert.title}:", spent),
                        "description": f"{alert.condition} It costs 20.00 USD an hour.",
                        "runbook_url": alert.runbook_url,
                    },
                }
            ],
        }
        for at, severity, route, spent in (("30m", "warning", "ticket", "30.00"), ("55m", "critical", "page", "55.00"))
    )
    run_cases(tmp_path, [case(series, alerts=tests)])


def test_waste_names_the_money_the_share_and_the_cause(tmp_path: Path) -> None:
    series = {
        **PRICED,
        GPU_SECONDS.at(**A, bucket="compute"): "0+240x60",
        GPU_SECONDS.at(**A, bucket="data_wait"): "0+192x60",
        GPU_SECONDS.at(**A, bucket="stall"): "0+48x60",
        WASTED_SECONDS.at(**A, bucket="data_wait"): "0+192x60",
        WASTED_SECONDS.at(**A, bucket="stall"): "0+48x60",
    }
    alert = {
        "eval_time": "40m",
        "alertname": "TrainbudgetWaste",
        "exp_alerts": [
            {
                "exp_labels": {"run": "a", "currency": "USD", "severity": "warning", "route": "ticket"},
                "exp_annotations": {
                    "summary": "a wastes 10.00 USD an hour (50% of what it costs), most of it in data_wait.",
                    "description": "GPU time that bought nothing, over the last ten minutes. It costs 20.00 USD an hour.",
                    "runbook_url": f"{RUNBOOK_URL}#trainbudgetwaste",
                },
            }
        ],
    }
    run_cases(tmp_path, [case(series, alerts=(alert,))])


def test_waste_without_a_price_is_told_as_a_share(tmp_path: Path) -> None:
    series = {
        **FRESH,
        GPU_SECONDS.at(**A, bucket="compute"): "0+30x60",
        GPU_SECONDS.at(**A, bucket="idle"): "0+30x60",
        WASTED_SECONDS.at(**A, bucket="idle"): "0+30x60",
    }
    alert = {
        "eval_time": "40m",
        "alertname": "TrainbudgetWaste",
        "exp_alerts": [
            {
                "exp_labels": {"run": "a", "severity": "warning", "route": "ticket"},
                "exp_annotations": {
                    "summary": "a wastes 50% of its GPU time (50% of what it costs), most of it in idle.",
                    "description": "GPU time that bought nothing, over the last ten minutes.",
                    "runbook_url": f"{RUNBOOK_URL}#trainbudgetwaste",
                },
            }
        ],
    }
    run_cases(tmp_path, [case(series, alerts=(alert,))])


def test_a_lost_gpu_is_named(tmp_path: Path) -> None:
    series = {
        **PRICED,
        LOST.at(**A, gpu="2"): "0x60",
        LOST.at(**A, gpu="5"): "1x60",
        FINDING_ACTIVE.at(**A, code="gpu_lost", severity="critical"): "1x60",
    }
    alert = next(a for a in ALERTS if a.code == "gpu_lost")
    expected = {
        "eval_time": "20m",
        "alertname": alert.name,
        "exp_alerts": [
            {
                "exp_labels": {"run": "a", "code": "gpu_lost", "severity": "critical", "route": "page"},
                "exp_annotations": {
                    "summary": f"a: {alert.title}, GPU 5 rank 0.",
                    "description": f"{alert.condition} It costs 20.00 USD an hour.",
                    "runbook_url": alert.runbook_url,
                },
            }
        ],
    }
    run_cases(tmp_path, [case(series, alerts=(expected,))])


def test_money_of_two_currencies_is_never_added(tmp_path: Path) -> None:
    b = {"run": "b", "rank": "0"}
    series = {
        **PRICED,
        REPORT_TIME.at(**b): "0+60x60",
        CHARGED_GPUS.at(**b): "2x60",
        PRICE.at(**b, currency="EUR"): "3x60",
    }
    expected = value(f"sum by (currency) ({SPEND.name})", "30m", ('{currency="USD"}', 20.0), ('{currency="EUR"}', 6.0))
    run_cases(tmp_path, [case(series, expected)])


def test_ranks_of_a_job_are_added_once_even_when_two_targets_show_the_same_rank(tmp_path: Path) -> None:
    one = {"run": "a", "rank": "1"}
    series = {
        **PRICED,
        REPORT_TIME.at(**one, instance="x"): "0+60x60",
        REPORT_TIME.at(**one, instance="y"): "0+60x60",
        CHARGED_GPUS.at(**one, instance="x"): "8x60",
        CHARGED_GPUS.at(**one, instance="y"): "8x60",
        PRICE.at(**one, currency="USD", instance="x"): "2.5x60",
        PRICE.at(**one, currency="USD", instance="y"): "2.5x60",
    }
    run_cases(tmp_path, [case(series, value(SPEND.name, "30m", (SPEND.at(run="a", currency="USD"), 40.0)))])


def test_a_run_that_had_done_all_its_steps_has_not_vanished(tmp_path: Path) -> None:
    series = {
        REPORT_TIME.at(**A): "0+60x20 _x40",
        RUN_STATE.at(**A): f"{STATES['training']}x20 _x40",
        STEPS_DONE.at(**A): "0+50x20 _x40",
        BUDGET_STEPS.at(**A): "1000x20 _x40",
    }
    run_cases(tmp_path, [case(series, value(VANISHED.name, "45m"), firing("TrainbudgetRunVanished", "45m"))])


def test_a_group_left_over_in_a_pushgateway_does_not_look_alive(tmp_path: Path) -> None:
    """The series go on unchanged after the process died; its report is what grows old."""
    series = {
        REPORT_TIME.at(**A): "0+60x20 1200x40",
        RUN_STATE.at(**A): f"{STATES['training']}x60",
        CHARGED_GPUS.at(**A): "8x60",
        PRICE.at(**A, currency="USD"): "2.5x60",
        FINDING_ACTIVE.at(**A, code="hang", severity="critical"): "1x60",
    }
    run_cases(
        tmp_path,
        [
            case(
                series,
                value(SPEND.name, "45m"),
                value(LIVE_STATE.name, "45m", (LIVE_STATE.at(run="a"), 0.0)),
                firing(alert_name("hang"), "45m"),
                value("count(ALERTS{alertname='TrainbudgetRunVanished',alertstate='firing'})", "45m", ("{}", 1.0)),
            )
        ],
    )


def test_an_out_of_memory_error_is_told_after_its_process_has_died(tmp_path: Path) -> None:
    series = {REPORT_TIME.at(**A): "0+60x10 _x50", FINDING_ACTIVE.at(**A, code="oom", severity="critical"): "_x8 1x2 _x50"}
    told = value("count(ALERTS{alertname='TrainbudgetOom',alertstate='firing'})", "18m", ("{}", 1.0))
    run_cases(tmp_path, [case(series, told, firing("TrainbudgetOom", "50m"))])


def test_what_was_wrong_with_a_run_that_ended_well_is_history_and_with_a_failed_one_is_not(tmp_path: Path) -> None:
    for state, firing_then in (("finished", 0), ("stopped", 0), ("failed", 1)):
        series = {
            **FRESH,
            RUN_STATE.at(**A): f"{STATES['training']}x20 {STATES[state]}x40",
            FINDING_ACTIVE.at(**A, code="hang", severity="critical"): "1x60",
        }
        count = f"count(ALERTS{{alertname='{alert_name('hang')}',alertstate='firing'}})"
        then = value(count, "40m", *([("{}", 1.0)] * firing_then))
        run_cases(tmp_path, [case(series, value(count, "15m", ("{}", 1.0)), then)])


def test_a_thousand_ranks_with_one_trouble_are_one_alert(tmp_path: Path) -> None:
    series: dict[str, str] = {}
    for rank in range(50):
        labels = {"run": "a", "rank": str(rank)}
        series[REPORT_TIME.at(**labels)] = "0+60x20"
        series[FINDING_ACTIVE.at(**labels, code="hang", severity="critical")] = "1x20"
    run_cases(tmp_path, [case(series, value(f"count(ALERTS{{alertname='{alert_name('hang')}'}})", "15m", ("{}", 1.0)))])


def test_an_edited_threshold_is_all_it_takes(tmp_path: Path) -> None:
    files = write_rules(tmp_path)
    text = files[0].read_text(encoding="utf-8")
    assert "expr: vector(1800)" in text
    files[0].write_text(text.replace("expr: vector(1800)", "expr: vector(600)"), encoding="utf-8")
    series = {**FRESH, OOM_FORECAST.at(**A, gpu="0"): "900x60"}
    run_cases(tmp_path, [case(series, firing("TrainbudgetOutOfMemorySoon", "20m"))], files)


@pytest.mark.parametrize("run", ['q\\"u', "a{b}", "x%s", "`b`", "{{ .Value }}", "名前", "r" * 128])
def test_a_hostile_run_name_breaks_no_template(tmp_path: Path, run: str) -> None:
    labels = {"run": run, "rank": "0"}
    series = {
        REPORT_TIME.at(**labels): "0+60x60",
        CHARGED_GPUS.at(**labels): "8x60",
        PRICE.at(**labels, currency="USD"): "2.5x60",
        GPU_SECONDS.at(**labels, bucket="compute"): "0+240x60",
        GPU_SECONDS.at(**labels, bucket="idle"): "0+240x60",
        WASTED_SECONDS.at(**labels, bucket="idle"): "0+240x60",
    }
    shown = run.replace('\\"', '"')
    alert = {
        "eval_time": "40m",
        "alertname": "TrainbudgetWaste",
        "exp_alerts": [
            {
                "exp_labels": {"run": shown, "currency": "USD", "severity": "warning", "route": "ticket"},
                "exp_annotations": {
                    "summary": f"{shown} wastes 10.00 USD an hour (50% of what it costs), most of it in idle.",
                    "description": "GPU time that bought nothing, over the last ten minutes. It costs 20.00 USD an hour.",
                    "runbook_url": f"{RUNBOOK_URL}#trainbudgetwaste",
                },
            }
        ],
    }
    money = value(f"sum({WASTED.name})", "40m", ("{}", 10.0))
    run_cases(tmp_path, [case(series, money, alerts=(alert,))])
