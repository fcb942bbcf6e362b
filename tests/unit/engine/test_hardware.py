"""The hardware family: heat, power, links, memory errors, Xid; judged under load and against peers."""

from __future__ import annotations

import pytest

from trainbudget.findings import Severity
from unit.engine.feeding import findings, loud
from unit.engine.minimal import hardware as minimal
from unit.engine.traces import Build

HARDWARE = {"thermal_throttle", "power_cap", "pcie_degraded", "ecc_errors", "xid"}


def one(events, code):
    found = findings(events, code)
    assert len(found) == 1, [f.name for f in findings(events)]
    return found[0]


def codes(events):
    return {f.code for f in findings(events)} & HARDWARE


# --- heat


def test_heat():
    found = one(minimal.hot(), "thermal_throttle")
    assert found.severity is Severity.WARNING
    assert found.gpu == 0
    assert found.evidence["clock_hz"] < 0.95 * found.evidence["usual_clock_hz"]
    assert found.evidence["usual_clock_hz"] == 1.41e9
    assert found.evidence["temperature_c"] > 70.0


@pytest.mark.parametrize("period_s", [0.5, 5.0, 10.0])
def test_heat_at_any_sampling(period_s):
    assert codes(minimal.hot(sample_period_s=period_s)) == {"thermal_throttle"}


@pytest.mark.parametrize(
    ("events", "severity"),
    [
        (minimal.untold("sm_clock_hz"), Severity.WARNING),  # flags speak for themselves
        (minimal.untold("throttle"), Severity.INFO),  # temperature and clock together
        (minimal.untold("temperature_c"), Severity.WARNING),
        (minimal.untold("utilization_ratio"), Severity.WARNING),  # steps go on: it is at work
        (minimal.hot(1.40e9, flags=("hw_thermal_slowdown",)), Severity.WARNING),  # the hardware itself
        (minimal.hot(flags=("hw_slowdown",)), Severity.WARNING),  # hot, so it is heat
    ],
)
def test_heat_with_less_to_go_by(events, severity):
    assert one(events, "thermal_throttle").severity is severity


@pytest.mark.parametrize(
    "events",
    [
        minimal.hot(1.40e9),  # flag without effect
        minimal.hot(flags=("gpu_idle",)),
        minimal.hot(flags=("applications_clocks_setting",)),
        minimal.untold("throttle", sm_clock_hz=1.36e9),  # warm and well
        minimal.untold("throttle", temperature_c=70.0),  # slower for another reason
    ],
)
def test_not_heat(events):
    assert codes(events) == set()


def test_a_cold_pause_is_no_reference():
    """Clocks of an idle card are power saving: neither the reference nor the verdict."""
    build = minimal.cards()
    build.reading[0].update(utilization_ratio=0.0, sm_clock_hz=2.1e8, throttle=["gpu_idle", "sw_thermal_slowdown"])
    assert codes(build.phase("eval", 200.0).end()) == set()


# --- power


def test_one_card_capped():
    found = one(minimal.capped(), "power_cap")
    assert (found.gpu, found.severity) == (1, Severity.WARNING)
    assert found.evidence["power_limit_w"] == 400.0
    assert found.evidence["peer_clock_hz"] == 1.41e9


@pytest.mark.parametrize(
    "events",
    [
        minimal.capped(count=1),  # alone, far from its limit
        minimal.capped(395.0, 1.06e9),  # at its limit and far below its peers
        minimal.capped(None, 1.06e9),  # power is not told
        minimal.capped(300.0, 1.40e9, ("hw_power_brake_slowdown",)),
    ],
)
def test_abnormal_caps(events):
    assert codes(events) == {"power_cap"}


@pytest.mark.parametrize(
    "events",
    [
        minimal.capped(392.0, 1.38e9),  # a busy card at its limit
        minimal.capped(235.0, 1.06e9, ()),  # no flag: another reason
        minimal.capped(235.0, 1.06e9, utilization_ratio=0.5),  # half-idle draws half the power
        minimal.capped(235.0, 1.06e9, ("sw_power_cap", "sw_thermal_slowdown")),  # heat is the cause
    ],
)
def test_normal_caps(events):
    assert "power_cap" not in codes(events)


def test_a_lowered_limit_that_is_reached_is_what_was_asked_for():
    build = Build().gpu(power_limit_w=250.0)
    build.reading[0].update(power_w=246.0, throttle=["sw_power_cap"])
    assert codes(build.start().steps(200).end()) == set()


# --- links


def test_slow_link_against_a_peer():
    found = one(minimal.link(), "pcie_degraded")
    assert (found.gpu, found.severity) == (1, Severity.WARNING)
    assert found.evidence["bandwidth_ratio"] == pytest.approx(5.0 / 16.0)
    assert found.evidence["peer_ratio"] == pytest.approx(3.2)


@pytest.mark.parametrize(
    ("events", "severity"),
    [
        (minimal.link(4, 4), Severity.WARNING),  # lanes lost
        (minimal.link(1, count=1), Severity.WARNING),  # alone: an eighth
        (minimal.link(3, count=1), Severity.INFO),  # alone: a half, boards do that
        (minimal.link(3, every=True), Severity.INFO),  # all alike
    ],
)
def test_links(events, severity):
    assert {f.severity for f in findings(events, "pcie_degraded")} == {severity}


def test_a_sleeping_link_is_power_saving():
    assert codes(minimal.link(1, utilization=0.0)) == set()


@pytest.mark.parametrize(("power_w", "found"), [(300.0, {"pcie_degraded"}), (60.0, set()), (None, set())])
def test_a_link_is_judged_by_power_where_utilization_is_not_told(power_w, found):
    build = Build().gpu(0).gpu(1)
    for reading in build.reading.values():
        reading.update(utilization_ratio=None, power_w=power_w)
    build.reading[1]["pcie_gen"] = 1
    assert codes(build.start().steps(200).end()) == found


def test_best_link_by_the_peers_where_the_card_does_not_tell_it():
    build = Build().gpu(0, pcie_gen_max=None).gpu(1, pcie_gen_max=None)
    build.reading[1]["pcie_gen"] = 1
    assert one(build.start().steps(200).end(), "pcie_degraded").gpu == 1


# --- faults


def test_uncorrected_errors_are_critical():
    found = one(minimal.ecc(uncorrected=1.0, before=7.0), "ecc_errors")
    assert found.severity is Severity.CRITICAL
    assert found.evidence["uncorrected"] == 1.0


def test_many_corrected_errors_are_a_warning():
    assert one(minimal.ecc(corrected=400.0), "ecc_errors").severity is Severity.WARNING


@pytest.mark.parametrize(
    "events", [minimal.ecc(before=5000.0), minimal.ecc(corrected=3.0), minimal.ecc(corrected=-10.0, before=50.0)]
)
def test_old_or_single_errors_are_not(events):
    assert codes(events) == set()


@pytest.mark.parametrize(
    ("number", "severity"),
    [(79, Severity.CRITICAL), (48, Severity.CRITICAL), (13, Severity.WARNING), (45, Severity.INFO), (999, Severity.WARNING)],
)
def test_xid(number, severity):
    found = one(minimal.xid(number), "xid")
    assert (found.gpu, found.severity, found.evidence["xid"]) == (0, severity, number)


def test_a_storm_of_the_same_xid_is_one_finding():
    assert len(findings(minimal.xid(63, times=20), "xid")) == 1


def test_xid_without_a_number_is_ignored():
    assert codes(minimal.cards().moment("xid", gpu=0).moment("xid", xid="79").moment("xid", xid=True).steps(20).end()) == set()


def test_healthy_cards_are_silent():
    build = Build()
    for index in range(4):
        build.gpu(index)
        build.reading[index].update(throttle=["sw_power_cap"], power_w=394.0, ecc_corrected=3.0, ecc_uncorrected=0.0)
    build.start().steps(100)
    for reading in build.reading.values():
        reading.update(utilization_ratio=0.0, power_w=70.0, sm_clock_hz=2.1e8, pcie_gen=1, throttle=["gpu_idle"])
    assert loud(build.phase("save", 30.0).steps(20).end()) == []
