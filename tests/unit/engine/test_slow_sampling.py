"""Sampling every ten seconds, host lines every hundred: what is known late is told late, and told right."""

from __future__ import annotations

import pytest

from unit.engine.feeding import fed, findings
from unit.engine.traces import Build


def waiting(**header) -> Build:
    build = Build(framework="loop", sample_period_s=10.0, host_period_s=100.0, **header).gpu()
    build.reading[0]["utilization_ratio"] = 0.4
    build.host.update(loader_workers=8, io_wait_ratio=0.3, read_bytes_per_s=2e8)
    return build


def test_an_optimizer_on_the_cpu_is_booked_by_ten_readings():
    build = Build(sample_period_s=10.0).gpu()
    build.reading[0]["utilization_ratio"] = 0.4
    ledger = fed(build.start().steps(400, 1.0, optimizer_s=0.6).end()).ledger
    assert ledger.seconds["optimizer_offload"] / ledger.total_s == pytest.approx(0.4, abs=0.15)
    assert ledger.seconds["optimizer_offload"] > 100.0


def test_a_wait_is_weighed_by_ten_readings():
    build = Build(sample_period_s=10.0).gpu()
    build.reading[0]["utilization_ratio"] = 0.97
    ledger = fed(build.start().steps(400, 0.5, wait_s=0.5).end()).ledger
    assert ledger.seconds["data_wait"] < 0.25 * ledger.total_s  # the GPU worked on while data was waited for


def test_the_cause_waits_for_the_hosts_first_word():
    events = waiting(settings={"num_train_epochs": 1}).start(5.0).steps(400, 0.4, wait_s=0.6).end()
    assert [f.cause for f in findings(events, "input_bound")] == ["storage"]


def test_without_workers_nothing_has_to_be_asked():
    build = waiting()
    build.host["loader_workers"] = 0
    events = build.start(150.0).steps(60, 0.4, wait_s=0.6).end()
    assert [f.cause for f in findings(events, "input_bound")] == ["workers"]


def test_a_second_epoch_is_not_judged_by_the_waits_of_the_first():
    """Long steps: for minutes the window holds waits of the first epoch, while the disk is quiet already."""
    build = waiting(settings={"num_train_epochs": 3})
    build.start().moment("epoch_begin").steps(60, 14.0, wait_s=17.0).moment("epoch_end")
    build.host.update(io_wait_ratio=0.0, read_bytes_per_s=1e4)
    build.reading[0]["utilization_ratio"] = 0.95
    events = build.moment("epoch_begin").steps(60, 14.0, wait_s=0.1).end()
    assert [f.cause for f in findings(events, "input_bound")] == ["cold_cache"]
