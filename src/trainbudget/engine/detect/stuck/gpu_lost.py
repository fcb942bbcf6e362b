"""The driver says that a device is gone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.detect.devices import lost_code
from trainbudget.findings import CodeRecord, Route, Severity


class GpuLost(BaseDetector):
    """NVML calls the device lost, or answers nothing but errors while nothing moves."""

    record = CodeRecord(
        code="gpu_lost",
        family="stuck",
        severity=Severity.CRITICAL,
        title="A GPU is lost",
        condition="NVML answers 15 (lost), 16 (reset required) or 28 (not found) for a device; or any other error for "
        "every query of it while no step comes.",
        silent="While steps go on and the error is none of the three: the driver cannot be asked, which is not a lost GPU; "
        "for errors of the driver's library as a whole (gpu_unavailable); for devices of others.",
        evidence={"code": "NVML return code", "silent_s": "seconds since the last step, where that decided"},
        levers=("L47",),
        route=Route.PAGE,
        runbook="Drain the node and restart from the last checkpoint elsewhere; Xid messages in the kernel log say why.",
    )
    clear_s = 60.0

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        for device in timeline.charged:
            if device.lost_since_s is None and not device.errors:
                continue
            code = lost_code(timeline, device)
            if code is None or (device.lost_since_s is None and not device.owned):
                continue
            evidence: dict[str, Any] = {"code": code}
            stalled = timeline.stalled_since_s
            if device.lost_since_s is None and stalled is not None:
                evidence["silent_s"] = round(timeline.since(stalled), 1)
            words = f"GPU {device.index} is lost (NVML code {code})"
            yield Signal("gpu_lost", gpu=device.index, summary=words, evidence=evidence)
