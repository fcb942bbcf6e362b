"""The closed list of codes and causes: a code or cause without record, detector or minimal trace fails the build."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from trainbudget.catalog.levers import LEVERS
from trainbudget.engine.detect import DETECTORS, RECORDS
from trainbudget.events import AnyEvent
from unit.engine.feeding import fed

FAMILIES = {
    "memory": "oom_predicted oom_forecast oom_next_phase oom memory_leak memory_fragmentation memory_pressure "
    "memory_over_budget foreign_memory stale_holder rank_extra_memory leftover_memory resume_excess eval_accumulation "
    "system_memory_spill host_memory_forecast",
    "waiting": "gpu_idle unused_gpu input_bound epoch_start_overhead optimizer_offload naive_model_parallel "
    "finished_holding_gpu notebook_idle slow_start recompile gc_pause launch_bound communication_bound",
    "stuck": "no_first_step hang collective_hang gpu_lost gpu_unavailable sampler_stalled",
    "hardware": "thermal_throttle power_cap pcie_degraded ecc_errors xid",
    "efficiency": "busy_but_slow step_over_budget padding_waste underused_memory needless_recompute needless_offload "
    "precision_unused slow_kernel_path batch_arithmetic scaling_inefficient",
    "spend": "cost_over_budget time_over_budget eval_share save_share log_share wasted_spend nothing_learned unsaved_work "
    "disk_forecast",
    "ranks": "straggler rank_imbalance rank_failed_first",
    "settings": "setting_unknown setting_renamed setting_no_effect",
    "self": "monitor_overhead monitor_degraded",
}
CAUSES = {
    "input_bound": "workers cpu storage cold_cache tokenize burst",
    "oom": "longest_batch leak fragmentation foreign_memory optimizer_state eval_accumulation checkpoint_gather true_capacity "
    "pending_stream_frees epoch_end sibling_ranks",
    "straggler": "input clock unknown",
    "gpu_unavailable": "library_not_found driver_mismatch permission cpu_build unknown",
    "slow_kernel_path": "attention optimizer logits",
}
CODES = {code: family for family, codes in FAMILIES.items() for code in codes.split()}
#: Every code, and every cause of those that have causes: each needs its minimal trace.
WANTED = [
    name for code in CODES for name in ([f"{code}/{cause}" for cause in CAUSES[code].split()] if code in CAUSES else [code])
]


def minimal_traces() -> dict[str, Callable[[], list[AnyEvent]]]:
    found: dict[str, Callable[[], list[AnyEvent]]] = {}
    for path in sorted((Path(__file__).parent / "minimal").glob("*.py")):
        if path.stem != "__init__":
            found |= importlib.import_module(f"unit.engine.minimal.{path.stem}").MINIMAL
    return found


TRACES = minimal_traces()


def test_the_list_is_closed():
    assert set(RECORDS) == set(CODES)


@pytest.mark.parametrize("code", CODES)
def test_every_code_has_a_whole_record(code):
    record = RECORDS[code]
    assert record.family == CODES[code]
    assert set(record.causes) == set(CAUSES.get(code, "").split())
    for name in ("title", "condition", "silent", "runbook"):
        assert getattr(record, name), name
    assert record.evidence
    assert all(record.evidence.values())


@pytest.mark.parametrize("code", CODES)
def test_thresholds_have_reasons_and_levers_exist(code):
    record = RECORDS[code]
    for threshold in record.thresholds:
        assert threshold.unit, threshold.name
        assert len(threshold.reason) > 20, threshold
    assert len({t.name for t in record.thresholds}) == len(record.thresholds)
    assert set(record.levers) <= set(LEVERS)


def test_detectors_of_one_code_share_its_record():
    for detector in DETECTORS:
        assert RECORDS[detector.record.code] == detector.record, detector.__name__


@pytest.mark.parametrize("name", WANTED)
def test_every_code_and_cause_has_a_trace_that_raises_it(name):
    assert name in TRACES, f"no minimal trace for {name}"
    engine = fed(TRACES[name]())
    raised = [f for f in engine.findings if name in (f.code, f.name)]
    assert raised, [f.name for f in engine.findings]
    record = RECORDS[raised[0].code]
    for finding in raised:
        assert finding.summary
        assert set(finding.evidence) <= set(record.evidence), "evidence that the record does not declare"
        assert finding.cause is None or finding.cause in record.causes
        json.dumps(finding.evidence, allow_nan=False)


def test_no_trace_is_for_something_else():
    names = set(WANTED) | set(CODES)
    assert set(TRACES) <= names, set(TRACES) - names
