"""Alerts against records: every code has one, every alert has words, a route, a runbook and two tests."""

from __future__ import annotations

import re

import pytest

from trainbudget.catalog import METRICS
from trainbudget.catalog.alert_spec import AlertSpec
from trainbudget.catalog.alerts import ALERTS, INHIBITIONS, ROUTES
from trainbudget.catalog.code_alerts import NUMBERS
from trainbudget.catalog.recording import RECORDING
from trainbudget.catalog.thresholds import THRESHOLDS
from trainbudget.engine.detect import RECORDS
from trainbudget.findings import Route

KNOWN = {spec.name for spec in METRICS} | {record.name for record in RECORDING} | {"trainbudget:threshold"}
NAME = re.compile(r"trainbudget[_:][a-z_]+")
#: Codes of the contract; an entry about a code that is not even there is a misspelling.
# fmt: off
CONTRACT_CODES = {
    "oom_predicted", "oom_forecast", "oom_next_phase", "oom", "memory_leak",
    "memory_fragmentation", "memory_pressure", "memory_over_budget", "foreign_memory", "stale_holder",
    "rank_extra_memory", "leftover_memory", "resume_excess", "eval_accumulation", "system_memory_spill",
    "host_memory_forecast", "gpu_idle", "unused_gpu", "input_bound", "epoch_start_overhead",
    "optimizer_offload", "naive_model_parallel", "finished_holding_gpu", "notebook_idle", "slow_start",
    "recompile", "gc_pause", "launch_bound", "communication_bound", "no_first_step",
    "hang", "collective_hang", "gpu_lost", "gpu_unavailable", "sampler_stalled",
    "thermal_throttle", "power_cap", "pcie_degraded", "ecc_errors", "xid",
    "busy_but_slow", "step_over_budget", "padding_waste", "underused_memory", "needless_recompute",
    "needless_offload", "precision_unused", "slow_kernel_path", "batch_arithmetic", "scaling_inefficient",
    "cost_over_budget", "time_over_budget", "eval_share", "save_share", "log_share",
    "wasted_spend", "nothing_learned", "unsaved_work", "disk_forecast", "straggler",
    "rank_imbalance", "rank_failed_first", "setting_unknown", "setting_renamed", "setting_no_effect",
    "monitor_overhead", "monitor_degraded",
}
# fmt: on


def test_every_code_has_exactly_one_alert() -> None:
    codes = [alert.code for alert in ALERTS if alert.code]
    assert sorted(codes) == sorted(RECORDS)
    assert len({alert.name for alert in ALERTS}) == len(ALERTS)


def test_numbers_belong_to_codes_of_the_contract() -> None:
    assert set(NUMBERS) <= CONTRACT_CODES
    assert set(RECORDS) <= CONTRACT_CODES


@pytest.mark.parametrize("alert", ALERTS, ids=lambda a: a.name)
def test_an_alert_is_complete(alert: AlertSpec) -> None:
    assert alert.summary
    assert alert.description
    assert alert.runbook
    assert alert.fires
    assert alert.silent
    assert alert.fires != alert.silent
    assert re.fullmatch(r"[0-9]+[smh]", alert.hold)
    assert "{{" in alert.route or Route(alert.route) in ROUTES
    assert "keep_firing_for" not in alert.expr


@pytest.mark.parametrize("alert", ALERTS, ids=lambda a: a.name)
def test_alerts_name_only_metrics_that_exist(alert: AlertSpec) -> None:
    for text in (alert.expr, alert.summary, alert.description):
        assert {n for n in NAME.findall(text) if not n.startswith("trainbudget_run_")} - KNOWN == set()


@pytest.mark.parametrize("record", RECORDING, ids=lambda r: r.name)
def test_recording_rules_name_only_metrics_that_exist(record: object) -> None:
    assert set(NAME.findall(record.expr)) - KNOWN == set()  # type: ignore[attr-defined]


def test_a_recording_rule_uses_only_those_before_it() -> None:
    seen: set[str] = set()
    for record in RECORDING:
        assert {n for n in NAME.findall(record.expr) if ":" in n} <= seen | {"trainbudget:threshold"}, record.name
        seen.add(record.name)


@pytest.mark.parametrize("record", [r for r in RECORDING if "currency" in r.labels], ids=lambda r: r.name)
def test_no_rule_aggregates_money_over_currencies(record: object) -> None:
    """Every aggregation of a money series keeps `currency` (or takes one series with all its labels: topk)."""
    text: str = record.expr  # type: ignore[attr-defined]
    for labels, inner in re.findall(r"(?:sum|max|min|avg) by \(([^)]*)\) \(([^()]*)", text):
        if any(word in inner for word in ("cost", "price", "spend")):
            assert "currency" in labels, text


def test_thresholds_are_named_once_and_have_a_reason() -> None:
    assert len({t.name for t in THRESHOLDS}) == len(THRESHOLDS)
    assert all(t.reason for t in THRESHOLDS)
    used = " ".join([a.expr for a in ALERTS] + [r.expr for r in RECORDING])
    assert all(t.series in used for t in THRESHOLDS)


def test_what_silences_others_exists() -> None:
    names = {alert.name for alert in ALERTS}
    assert {source for source, _ in INHIBITIONS} <= names | {f"Trainbudget{c}" for c in ("Hang", "GpuLost")}


def test_who_is_called_at_night() -> None:
    """OOM soon, hang, lost GPU, spent budget; nothing about waste."""
    pages = {a.name for a in ALERTS if a.route == "page" or "{{" in a.route}
    assert {"TrainbudgetOutOfMemorySoon", "TrainbudgetHang", "TrainbudgetGpuLost", "TrainbudgetCostOverBudget"} <= pages
    assert pages.isdisjoint({"TrainbudgetWaste", "TrainbudgetGpuIdle", "TrainbudgetInputBound", "TrainbudgetStepOverBudget"})
