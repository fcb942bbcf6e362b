"""The catalogue: names, units, labels, and that what is unknown has no series."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

import trainbudget
from trainbudget.catalog import METRICS, Kind, MetricSpec, Snapshot, Unit, clean, most_series, run_label
from trainbudget.engine.report import GpuReport
from trainbudget.events import Header
from trainbudget.sinks.exposition import families
from unit.sinks.report_samples import gpu_report, report, unknown_report

#: Names others rely on (contract, section 8), each with the labels given there.
CONTRACT = {
    "run_info": (),
    "gpu_info": ("gpu",),
    "up": (),
    "gpu_utilization_ratio": ("gpu",),
    "gpu_memory_used_bytes": ("gpu",),
    "gpu_memory_total_bytes": ("gpu",),
    "gpu_memory_limit_bytes": ("gpu",),
    "gpu_power_watts": ("gpu",),
    "gpu_temperature_celsius": ("gpu",),
    "gpu_seconds_total": ("bucket",),
    "pending_gpu_seconds": (),
    "allocator_bytes": ("gpu", "kind"),
    "allocator_retries_total": ("gpu",),
    "memory_peak_bytes": ("gpu",),
    "memory_headroom_bytes": ("gpu",),
    "budget_memory_bytes": (),
    "budget_step_seconds": (),
    "budget_cost": ("currency",),
    "budget_run_seconds": (),
    "step_seconds": (),
    "steps_total": (),
    "tokens_total": ("kind",),
    "samples_total": (),
    "model_flops_utilization_ratio": (),
    "cost_total": ("currency",),
    "wasted_cost_total": ("currency", "bucket"),
    "projected_cost": ("currency",),
    "projected_end_timestamp_seconds": (),
    "oom_forecast_seconds": ("gpu",),
    "finding_active": ("code", "severity"),
    "findings_total": ("code",),
    "last_step_timestamp_seconds": (),
    "sample_age_seconds": ("gpu",),
    "sample_errors_total": ("reason",),
    "self_seconds_total": ("kind",),
    "gpu_energy_joules_total": ("gpu",),
}
LABELS = {"run", "rank", "gpu", "bucket", "code", "severity", "kind", "reason", "phase", "currency"}


def snapshot(**more: object) -> Snapshot:
    return Snapshot(report=report(**more), zero_unix_s=1000.0, now_unix_s=1101.0)  # type: ignore[arg-type]


def with_gpu(gpu: GpuReport) -> Snapshot:
    return Snapshot(report=msgspec.structs.replace(report(), gpus=(gpu,)), zero_unix_s=0.0, now_unix_s=1.0)


def test_names_of_the_contract_are_all_there_with_their_labels() -> None:
    found = {spec.stem: spec.labels for spec in METRICS}
    for stem, labels in CONTRACT.items():
        assert set(labels) <= set(found[stem]), stem


def test_no_metric_is_declared_twice() -> None:
    assert len({spec.stem for spec in METRICS}) == len(METRICS)


@pytest.mark.parametrize("spec", METRICS, ids=lambda s: s.stem)
def test_a_name_carries_its_unit_and_its_kind(spec: MetricSpec) -> None:
    stem = spec.stem.removesuffix("_total")
    assert (spec.kind is Kind.COUNTER) == spec.stem.endswith("_total")
    if spec.unit.suffix is not None:
        assert stem.endswith(spec.unit.suffix)
    assert spec.unit is Unit.INFO or set(spec.labels) <= LABELS
    assert spec.unit is not Unit.MONEY or "currency" in spec.labels
    assert spec.help.endswith(".")


def test_a_full_report_shows_every_metric() -> None:
    shown = {family.spec.stem for family in families(snapshot())}
    assert shown == {spec.stem for spec in METRICS}


def test_what_is_unknown_has_no_series() -> None:
    shown = {f.spec.stem for f in families(Snapshot(report=unknown_report(), zero_unix_s=0.0, now_unix_s=1.0))}
    assert shown == {
        "scrape_seconds_total",
        "series_dropped",
        "run_info",
        "up",
        "run_state",
        "report_timestamp_seconds",
        "charged_gpus",
        "steps_total",
        "pending_gpu_seconds",
        "gpu_info",
        "gpu_lost",
    }


@pytest.mark.parametrize(
    "name",
    [n for n in msgspec.structs.fields(type(gpu_report().reading)) if n.name not in ("t_s", "gpu", "count", "errors")],
    ids=lambda f: f.name,
)
def test_one_refused_query_takes_only_its_own_series(name: msgspec.structs.FieldInfo) -> None:
    full = gpu_report()
    assert full.reading is not None
    reading = msgspec.structs.replace(full.reading, **{name.name: None})
    before = {f.spec.stem for f in families(snapshot())}
    after = {f.spec.stem for f in families(with_gpu(msgspec.structs.replace(full, reading=reading)))}
    assert after <= before
    assert len(before - after) <= 2


def test_a_number_that_is_not_finite_is_unknown() -> None:
    full = gpu_report()
    assert full.reading is not None
    bad = msgspec.structs.replace(
        full, reading=msgspec.structs.replace(full.reading, power_w=float("nan"), temperature_c=float("inf"))
    )
    shown = {f.spec.stem for f in families(with_gpu(bad))}
    assert "gpu_power_watts" not in shown
    assert "gpu_temperature_celsius" not in shown
    assert "gpu_utilization_ratio" in shown


def test_one_gpu_has_at_most_forty_series() -> None:
    one, two = (sum(len(f.series) for f in families(snapshot(gpus=n))) for n in (1, 2))
    assert two - one <= 40


def test_values_are_those_of_the_report() -> None:
    values = {
        (s.name, dict(s.labels).get("bucket") or dict(s.labels).get("kind") or ""): s.value
        for f in families(snapshot())
        for s in f.series
    }
    assert values["trainbudget_cost_total", ""] == 1.25
    assert values["trainbudget_last_step_timestamp_seconds", ""] == 1098.0
    assert values["trainbudget_sample_age_seconds", ""] == 2.0
    assert values["trainbudget_oom_forecast_seconds", ""] == 132.0
    assert values["trainbudget_projected_end_timestamp_seconds", ""] == 2050.0
    assert values["trainbudget_gpu_pcie_link_ratio", ""] == 0.5
    assert values["trainbudget_gpu_processes_memory_bytes", "other"] == 1e9
    assert values["trainbudget_step_seconds_count", ""] == 90


def test_a_cleared_finding_stays_as_zero_so_that_its_end_can_be_seen() -> None:
    series = [s for f in families(snapshot()) if f.spec.stem == "finding_active" for s in f.series]
    assert {dict(s.labels)["code"]: s.value for s in series} == {"oom_forecast": 1, "input_bound": 1, "hang": 0}


def test_series_of_a_process_are_bounded_by_the_contract() -> None:
    assert most_series(8) == 400


@pytest.mark.parametrize(
    ("header", "label"),
    [
        (Header(run="a", id="7f"), "a-7f"),
        (Header(run="a-7f", id="7f"), "a-7f"),
        (Header(run="", id=None), "unnamed"),
        (Header(run=None, id="x"), "unnamed-x"),
        (Header(run='a\ud800b\u2028c\nd"e\\', id=None), 'a_b_c_d"e\\'),
        (Header(run="\u200f\u0000", id=None), "__"),
        (Header(run="x" * 100_000, id="7f3a"), "x" * 123 + "-7f3a"),
    ],
)
def test_a_run_label_is_printable_short_and_never_empty(header: Header, label: str) -> None:
    assert run_label(header) == label


def test_clean_text_is_bounded_whatever_comes() -> None:
    assert len(clean("é" * 100_000)) == 128
    assert clean("  a  ") == "a"


def test_a_metric_name_is_written_nowhere_but_in_its_declaration() -> None:
    """Panels, rules, docs and sinks hold the declared objects: a rename is one edit, a misspelling is an error."""
    source = Path(trainbudget.__file__).parent
    names = [spec.name for spec in METRICS]
    for path in source.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert [name for name in names if re.search(rf"\b{name}\b", text)] == [], path
    declarations = "".join(path.read_text(encoding="utf-8") for path in (source / "catalog").glob("*_metrics.py"))
    declared = re.findall(r'(?:stem=|_metric\(\s*)"(\w+)"', declarations)
    assert sorted(declared) == sorted(spec.stem for spec in METRICS)
