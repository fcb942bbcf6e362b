"""The host: memory and disk."""

from __future__ import annotations

import math

import pytest

from trainbudget.findings import Severity
from unit.engine.feeding import findings, loud
from unit.engine.minimal.memory import card, course, flat, host_growth, saves
from unit.engine.traces import GIB


def one(events, code):
    found = findings(events, code)
    assert len(found) == 1, [f.name for f in findings(events)]
    return found[0]


def test_workers_that_grow_meet_the_limit():
    found = one(host_growth(0.2, 150), "host_memory_forecast")
    # 256 GiB with 4 GiB of our own and 10 GiB of others': the available memory is gone first.
    true_s = 10 + 10 * 5.01 + (256 - 110) / 0.2 * 5.01
    assert found.forecast.at_s == pytest.approx(true_s, rel=0.05)
    assert found.evidence["children_ratio"] > 0.9
    assert found.evidence["bytes_per_hour"] == pytest.approx(0.2 * GIB / 5.01 * 3600, rel=0.05)


def test_without_available_memory_resident_memory_serves():
    found = one(host_growth(0.3, 120, memory_available_bytes=None), "host_memory_forecast")
    assert found.evidence["by"] == "rss"


def test_pages_that_workers_share_are_counted_once():
    # Eight workers that each count their parent's pages: far more than the machine has, and nothing of it is missing.
    build = card(budget={"steps_total": 5000}).start()
    for n in range(150):
        build.host.update(children_rss_bytes=(300 + n * 0.5) * GIB, memory_available_bytes=180 * GIB)
        course(build, 1, flat(), step_s=5.0)
    assert loud(build.end()) == []


def test_a_container_has_less_than_the_machine():
    build = card(budget={"steps_total": 5000}).start()
    build.events[0].host.memory_limit_bytes = 64 * GIB
    for n in range(150):
        build.host.update(children_rss_bytes=(10 + n * 0.2) * GIB, memory_available_bytes=900 * GIB)
        course(build, 1, flat(), step_s=5.0)
    found = one(build.end("interrupted"), "host_memory_forecast")
    assert found.evidence["by"] == "rss"
    assert found.forecast.at_s == pytest.approx(60 + (64 - 4 - 10) / 0.2 * 5.01, rel=0.1)


def test_less_than_ten_minutes_is_critical():
    assert one(host_growth(0.5, 230), "host_memory_forecast").severity is Severity.CRITICAL


def test_memory_that_settles_is_silent():
    build = card(budget={"steps_total": 5000}).start()
    for n in range(200):
        build.host["children_rss_bytes"] = (20 + 60 * (1 - math.exp(-n / 20))) * GIB
        build.host["memory_available_bytes"] = (200 - 60 * (1 - math.exp(-n / 20))) * GIB
        course(build, 1, flat(), step_s=5.0)
    assert loud(build.end()) == []


def test_a_run_that_is_over_before_is_silent():
    build = card(budget={"steps_total": 260}).start()
    for n in range(250):
        build.host["children_rss_bytes"] = (20 + n * 0.3) * GIB
        build.host["memory_available_bytes"] = (220 - n * 0.3) * GIB
        course(build, 1, flat(), step_s=5.0)
    assert findings(build.end(), "host_memory_forecast") == []


def test_the_devices_memory_is_not_accused():
    assert {f.code for f in loud(host_growth())} == {"host_memory_forecast"}


def test_a_killed_worker_is_the_hosts_memory():
    build = course(card().start(), 20, flat())
    build.moment("exception", type="RuntimeError", message="DataLoader worker (pid 4242) is killed by signal: Killed.")
    events = build.end("failed", train_end=False)
    found = one(events, "host_memory_forecast")
    assert found.severity is Severity.CRITICAL
    assert "Killed" in found.evidence["message"]
    assert findings(events, "oom") == []


def test_checkpoints_that_fill_the_disk():
    found = one(saves(100.0, 15.0), "disk_forecast")
    assert found.evidence["per_save_bytes"] == pytest.approx(15 * GIB, rel=0.01)
    assert found.forecast.at_step == pytest.approx(350, abs=51)  # the seventh save of 15 GiB does not fit into 100


def test_the_next_save_that_fails_is_critical():
    assert one(saves(40.0, 15.0, 2), "disk_forecast").severity is Severity.CRITICAL


def test_checkpoints_that_are_deleted_or_fit_are_silent():
    assert findings(saves(100.0, 15.0, 6, kept=2), "disk_forecast") == []
    assert findings(saves(1000.0, 15.0), "disk_forecast") == []
    assert findings(saves(100.0, 15.0, 5, kept=5, settings={"save_total_limit": 5}), "disk_forecast") == []


def test_a_limit_that_does_not_fit_is_known_from_the_settings():
    found = one(saves(100.0, 30.0, 2, settings={"save_total_limit": 5}), "disk_forecast")
    assert found.evidence["saves_left"] == 4
    assert found.evidence["saves_that_fit"] == 1


def test_something_else_that_fills_the_disk():
    build = card(budget={"steps_total": 5000}).start()
    for n in range(150):
        build.host["disk_free_bytes"] = (300 - n) * GIB
        course(build, 1, flat(), step_s=5.0)
    found = one(build.end("interrupted"), "disk_forecast")
    assert found.forecast.at_s == pytest.approx(10 + 300 * 5.01, rel=0.05)


@pytest.mark.parametrize(("room_gib", "raised"), [(120.0, False), (72.0, True)])
def test_what_fills_is_not_drawn_far_in_its_first_minutes(room_gib, raised):
    """Pages that are touched for the first time: 60 GiB with a time constant of 200 s, a straight line for two minutes."""
    build = course(card(budget={"steps_total": 5000}).start(), 10, flat())
    begin_s = build.t
    for _ in range(30):
        filled = 60.0 * (1.0 - math.exp(-(build.t - begin_s) / 200.0)) if not raised else 0.2 * (build.t - begin_s)
        build.host.update(children_rss_bytes=(20.0 + filled) * GIB, memory_available_bytes=(room_gib - filled) * GIB)
        course(build, 1, flat(), step_s=5.0)
    assert bool(findings(build.end("interrupted"), "host_memory_forecast")) is raised
