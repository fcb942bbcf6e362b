"""Whatever a run is called and whatever a device answers, what is served reads back as it was meant."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from trainbudget.catalog import clean, most_series, run_label
from trainbudget.events import Header
from trainbudget.sinks.exposition import body_of, number
from unit.sinks.report_samples import gpu_report, report

#: Lone surrogates included, which no encoder takes.
ANYTHING = st.text(st.characters(), max_size=300)


@settings(max_examples=60, deadline=None)
@given(ANYTHING, ANYTHING, ANYTHING)
def test_names_read_back_as_cleaned(name: str, ident: str, device: str) -> None:
    gpu = gpu_report()
    header = Header(run=name, id=ident)
    full = report(header=header, gpus=1)
    full = replace(full, gpus=(replace(gpu, info=replace_name(gpu.info, device)),))
    text, _ = body_of(full, zero_unix_s=0.0, now_unix_s=100.0)
    text.encode("utf-8")
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    assert {s.labels["run"] for s in samples} == {run_label(header)}
    assert [s.labels["name"] for s in samples if s.name == "trainbudget_gpu_info"] == [clean(device)]
    assert len(samples) <= most_series(1)


def replace_name(info: object, name: str) -> object:
    import copy

    changed = copy.copy(info)
    changed.name = name  # type: ignore[attr-defined]
    return changed


@settings(max_examples=200, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_read_back_exactly(value: float) -> None:
    back = float(number(value))
    assert back == value or math.isclose(back, value, rel_tol=0.0, abs_tol=0.0)


@settings(max_examples=60, deadline=None)
@given(st.floats(), st.floats(), st.floats())
def test_strange_readings_are_left_out_or_served_as_they_are(power: float, memory: float, clock: float) -> None:
    gpu = gpu_report()
    assert gpu.reading is not None
    strange = replace(gpu, reading=replace(gpu.reading, power_w=power, memory_used_bytes=memory, sm_clock_hz=clock))
    text, _ = body_of(replace(report(), gpus=(strange,)), zero_unix_s=0.0, now_unix_s=100.0)
    found = {s.name: s.value for family in text_string_to_metric_families(text) for s in family.samples}
    for name, value in (("gpu_power_watts", power), ("gpu_memory_used_bytes", memory), ("gpu_sm_clock_hertz", clock)):
        assert found.get(f"trainbudget_{name}") == (value if math.isfinite(value) else None)
