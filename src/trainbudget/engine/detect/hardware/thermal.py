"""A device slows down because it is hot."""

from __future__ import annotations

from collections.abc import Iterable

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.detect.hardware.load import THERMAL_FLAGS, UNCLEAR_FLAGS, Load, lately_flagged, load_of, peer_clock_hz
from trainbudget.engine.timeline import Timeline
from trainbudget.engine.tracks.device import DeviceTrack
from trainbudget.findings import CodeRecord, Route, Severity, Threshold
from trainbudget.quantities import percent

#: Without a clock to compare, the flag must be set most of the time.
MOSTLY = 0.5
_HARDWARE = frozenset({"hw_thermal_slowdown"})


class ThermalThrottle(BaseDetector):
    """Thermal flags or high temperature together with a lower clock, under load."""

    record = CodeRecord(
        code="thermal_throttle",
        family="hardware",
        severity=Severity.WARNING,
        title="A GPU slows down because it is hot",
        condition="In the last two minutes of load 20 % of the readings have a thermal slow-down flag and the clock is 5 % "
        "below that of the run's beginning or of its peers; hardware slow-down, or flags where clocks are not told, count by "
        "themselves. Where flags are not told: 83 °C and a clock 10 % lower (info).",
        silent="At rest; for the idle flag and other flags; while the clock holds; in the first minute of training.",
        evidence={
            "flagged_ratio": "share of busy readings with a thermal flag, null where flags are not told",
            "clock_hz": "median SM clock now",
            "usual_clock_hz": "at the beginning of training, or of the peers",
            "temperature_c": "median now",
            "step_time_s": "median step now",
            "usual_step_s": "median of the first steady steps",
        },
        thresholds=(
            Threshold(
                name="flagged_ratio", default=0.20, unit="ratio", reason="short boosts touch the limit for a reading or two"
            ),
            Threshold(
                name="clock_ratio", default=0.95, unit="ratio", reason="boost steps move the clock by 1-3 % with temperature"
            ),
            Threshold(name="hot_c", default=83.0, unit="°C", reason="common slow-down point of consumer and workstation cards"),
            Threshold(name="hot_clock_ratio", default=0.90, unit="ratio", reason="without flags the clock must speak louder"),
        ),
        levers=("L27",),
        route=Route.TICKET,
        runbook="Look at fans, airflow and the neighbours' heat; lower the power limit a little rather than run into the limit. "
        "Utilization does not show it: it stays where it was.",
    )
    every_s = 10.0
    clear_s = 60.0

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        for device in timeline.owned:
            if device.last is None or not self._worth(view, device):
                continue
            load = load_of(timeline, device, assume_busy=True)  # a device at rest is not hot and not slowed for heat
            if load is not None:
                yield from self._judge(view, device, load)

    def _worth(self, view: View, device: DeviceTrack) -> bool:
        if device.last is None:
            return False
        if lately_flagged(device, THERMAL_FLAGS | UNCLEAR_FLAGS):
            return True
        if device.window and device.window[-1].throttle is not None:
            return False  # flags are told, and say nothing of heat
        temperature = device.last.temperature_c
        return temperature is not None and temperature >= view.limit(self.record, "hot_c")

    def _judge(self, view: View, device: DeviceTrack, load: Load) -> Iterable[Signal]:
        timeline = view.timeline
        flagged = load.flagged(THERMAL_FLAGS)
        temperature = load.temperature_c
        hot = temperature is not None and temperature >= view.limit(self.record, "hot_c")
        if flagged is not None and hot:
            flagged = load.flagged(THERMAL_FLAGS | UNCLEAR_FLAGS)
        clock, usual = load.clock_hz, usual_clock_hz(timeline, device)
        ratio = clock / usual if clock is not None and usual else None
        severity = Severity.WARNING
        if flagged is None:
            if not hot or ratio is None or ratio > view.limit(self.record, "hot_clock_ratio"):
                return
            severity = Severity.INFO
        else:
            if flagged < view.limit(self.record, "flagged_ratio"):
                return
            by_hardware = (load.flagged(_HARDWARE) or 0.0) >= view.limit(self.record, "flagged_ratio")
            if ratio is None and not by_hardware and flagged < MOSTLY:
                return
            if ratio is not None and not by_hardware and ratio > view.limit(self.record, "clock_ratio"):
                return
        words = "" if ratio is None else f" at {percent(ratio)} of its usual clock"
        degrees = "" if temperature is None else f", {temperature:.0f} °C"
        yield Signal(
            "thermal_throttle",
            gpu=device.index,
            severity=severity,
            summary=f"GPU {device.index} runs hot{words}{degrees}",
            evidence={
                "flagged_ratio": None if flagged is None else round(flagged, 3),
                "clock_hz": clock,
                "usual_clock_hz": usual,
                "temperature_c": temperature,
                "step_time_s": timeline.steps.median_s(),
                "usual_step_s": timeline.steps.baseline_s(),
            },
        )


def usual_clock_hz(timeline: Timeline, device: DeviceTrack) -> float | None:
    """The higher of the clock at the beginning and the peers' clock now: a card may have been hot from the start."""
    known = [c for c in (device.load.clock_hz, peer_clock_hz(timeline, device)) if c is not None]
    return max(known) if known else None
