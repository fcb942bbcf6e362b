"""A device is held below the power that it may draw."""

from __future__ import annotations

from collections.abc import Iterable

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.detect.hardware.load import (
    BRAKE_FLAGS,
    CAP_FLAGS,
    THERMAL_FLAGS,
    Load,
    lately_flagged,
    load_of,
    peer_clock_hz,
    peers_of,
)
from trainbudget.engine.tracks.device import DeviceTrack
from trainbudget.findings import CodeRecord, Route, Severity, Threshold
from trainbudget.quantities import percent

#: Power below the limit is news only of a card that works all the time.
FULL_LOAD = 0.8
#: Share of readings with the flag: a card at its limit has it almost always, one that touches it now and then has not.
FLAGGED_RATIO = 0.5
BRAKE_RATIO = 0.2


class PowerCap(BaseDetector):
    """The power-cap flag is set although the card is far from its limit, or clocks far below its peers."""

    record = CodeRecord(
        code="power_cap",
        family="hardware",
        severity=Severity.WARNING,
        title="A GPU is capped below its power limit",
        condition="Under full load the power-cap flag is set in half of the readings while the card draws less than 80 % of its "
        "enforced limit, or clocks 15 % below its peers; or the external power brake is on.",
        silent="For the flag alone: a busy datacentre card at its limit always has it; for a limit that an administrator "
        "lowered and the card reaches; when heat explains it (thermal_throttle); below 80 % utilization.",
        evidence={
            "flagged_ratio": "share of busy readings with the flag",
            "power_w": "median draw",
            "power_limit_w": "enforced limit",
            "clock_hz": "median SM clock",
            "peer_clock_hz": "of the other cards of the same model",
        },
        thresholds=(
            Threshold(name="power_ratio", default=0.80, unit="ratio", reason="a card at its limit draws 90-100 % of it"),
            Threshold(
                name="clock_ratio", default=0.85, unit="ratio", reason="equal cards under equal load differ by 2-5 % in clock"
            ),
        ),
        levers=("L27",),
        route=Route.TICKET,
        runbook="Compare nvidia-smi -q -d POWER over the cards of the node; look for a missing power cable, a failing supply, a "
        "chassis or rack limit (BMC). Move the job until it is fixed: the slowest card sets the pace.",
    )
    every_s = 15.0
    clear_s = 60.0

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        for device in timeline.owned:
            if device.last is None or not device.last.throttle or not lately_flagged(device, CAP_FLAGS | BRAKE_FLAGS):
                continue
            if not lately_flagged(device, BRAKE_FLAGS) and not self._low_now(view, device):
                continue
            load = load_of(timeline, device, utilization=FULL_LOAD)
            if load is None or (load.flagged(THERMAL_FLAGS) or 0.0) >= BRAKE_RATIO:
                continue
            yield from self._judge(view, device, load)

    def _low_now(self, view: View, device: DeviceTrack) -> bool:
        """Whether the newest reading could be part of an abnormal cap: a cheap look, the flag itself is on all day."""
        last, limit = device.last, device.info.power_limit_w or device.info.power_default_limit_w
        if last is None:
            return False
        if last.power_w is not None and limit is not None and last.power_w < view.limit(self.record, "power_ratio") * limit:
            return True
        ratio = view.limit(self.record, "clock_ratio")
        clocks = [d.last.sm_clock_hz for d in peers_of(view.timeline, device) if d.last is not None]
        return last.sm_clock_hz is not None and any(c is not None and last.sm_clock_hz < ratio * c for c in clocks)

    def _judge(self, view: View, device: DeviceTrack, load: Load) -> Iterable[Signal]:
        capped, braked = load.flagged(CAP_FLAGS) or 0.0, load.flagged(BRAKE_FLAGS) or 0.0
        power, limit = load.power_w, device.info.power_limit_w or device.info.power_default_limit_w
        clock, peers = load.clock_hz, peer_clock_hz(view.timeline, device)
        low_power = power is not None and limit is not None and power < view.limit(self.record, "power_ratio") * limit
        low_clock = clock is not None and peers is not None and clock < view.limit(self.record, "clock_ratio") * peers
        if braked < BRAKE_RATIO and not (capped >= FLAGGED_RATIO and (low_power or low_clock)):
            return
        drawn = "" if power is None else f" at {power:.0f} W" + ("" if limit is None else f" of {limit:.0f}")
        slower = f", clock {percent(clock / peers)} of its peers'" if clock is not None and peers else ""
        yield Signal(
            "power_cap",
            gpu=device.index,
            summary=f"GPU {device.index} is {'braked' if braked >= BRAKE_RATIO else 'capped'}{drawn}{slower}",
            evidence={
                "flagged_ratio": round(max(capped, braked), 3),
                "power_w": power,
                "power_limit_w": limit,
                "clock_hz": clock,
                "peer_clock_hz": peers,
            },
        )
