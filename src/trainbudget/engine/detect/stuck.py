"""Stuck: nothing moves, or nobody can tell any more."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.tracks.device import LOST_CODES, UNSUPPORTED_CODES, DeviceTrack
from trainbudget.findings import CodeRecord, Route, Severity, Threshold


class Hang(BaseDetector):
    """No step for far longer than a step takes, while nothing explains it."""

    record = CodeRecord(
        code="hang",
        family="stuck",
        severity=Severity.CRITICAL,
        title="Training has stopped moving",
        condition="No optimizer step for 10 x the median step or 120 s, whichever is longer, between train_begin and train_end.",
        silent="In evaluation, saving, compilation and start-up; after train_end, Ctrl-C or an exception; when the GPU is lost.",
        evidence={
            "silent_s": "seconds since the last step, phase or word of progress",
            "limit_s": "seconds after which a run counts as hanging",
            "utilization_ratio": "of the busiest GPU over the last minute",
            "last_step": "the last step that completed",
        },
        levers=(),
        route=Route.PAGE,
        runbook="Look at the Python stacks in the run's directory (stacks.txt), then at the data loader and, with several ranks, "
        "at which rank is behind. Stop the run when no rank moves: it costs as much as a running one.",
    )

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        since_s = timeline.stalled_since_s
        if since_s is None or any(d.lost_since_s is not None for d in timeline.owned):
            return
        busy = [d.utilization_mean(timeline.now_s - 60.0, minimum=5) for d in timeline.owned]
        known = [b for b in busy if b is not None]
        silent_s = timeline.since(since_s)
        yield Signal(
            "hang",
            summary=f"no step for {silent_s:.0f} s, a step takes {timeline.steps.median_s() or 0.0:.2g} s",
            evidence={
                "silent_s": round(silent_s, 1),
                "limit_s": round(timeline.hang_after_s, 1),
                "utilization_ratio": max(known) if known else None,
                "last_step": timeline.run.last_step,
            },
        )


class GpuLost(BaseDetector):
    """The driver says the device is gone, or answers nothing but errors while nothing moves."""

    record = CodeRecord(
        code="gpu_lost",
        family="stuck",
        severity=Severity.CRITICAL,
        title="A GPU is lost",
        condition="NVML answers 15 (lost), 16 (reset required) or 28 (not found) for a device; or any other error for "
        "every query of it while no step comes.",
        silent="While steps go on and the error is none of the three: the driver cannot be asked, which is not a lost GPU.",
        evidence={"code": "NVML return code", "silent_s": "seconds since the last step, where that decided"},
        route=Route.PAGE,
        runbook="Look for Xid messages in the host's kernel log. Drain the node; restart from the last checkpoint elsewhere.",
    )
    clear_s = 60.0

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        stalled = timeline.stalled_since_s
        for device in timeline.gpus.values():
            if device.lost_since_s is not None:
                yield self._signal(device, device.lost_code, None)
            elif stalled is not None and device.owned and everything_fails(device):
                yield self._signal(device, next(iter(device.errors.values())), timeline.since(stalled))

    def _signal(self, device: DeviceTrack, code: int | None, silent_s: float | None) -> Signal:
        evidence: dict[str, Any] = {"code": code}
        if silent_s is not None:
            evidence["silent_s"] = round(silent_s, 1)
        return Signal("gpu_lost", gpu=device.index, summary=f"GPU {device.index} is lost (NVML code {code})", evidence=evidence)


class GpuUnavailable(BaseDetector):
    """There is no device data at all: from the start, or since the driver as a whole stopped answering."""

    record = CodeRecord(
        code="gpu_unavailable",
        family="stuck",
        severity=Severity.WARNING,
        title="No GPU data",
        condition="The backend could not be opened, or every query of every device has failed for a minute.",
        silent="When the machine has no GPU and none was asked for; when single queries fail (monitor_degraded).",
        evidence={"code": "NVML return code or the reason the backend gave", "text": "the backend's own words"},
        thresholds=(
            Threshold(name="for_s", default=60.0, unit="s", reason="a driver reload or a slow query is over in seconds"),
        ),
        causes=("library_not_found", "driver_mismatch", "permission", "cpu_build", "unknown"),
        route=Route.TICKET,
        runbook="Run `trainbudget doctor` on the node. Training is not affected; memory, power and idleness are unknown.",
    )
    clear_s = 10.0

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        error = timeline.header.backend_error
        if error is not None and not timeline.gpus and str(error.code) not in ("none", "no_gpu"):
            yield Signal(
                "gpu_unavailable",
                cause=cause_of(error.code),
                summary=f"no GPU data: {error.text or error.code}",
                evidence={"code": error.code, "text": error.text},
            )
            return
        owned = timeline.owned
        if not owned or not all(everything_fails(d) for d in owned):
            return
        since_s = max(max(d.error_since_s.values(), default=timeline.now_s) for d in owned)
        if timeline.since(since_s) < view.limit(self.record, "for_s"):
            return
        if all(d.lost_since_s is not None for d in owned):
            return  # said by gpu_lost
        code = next(iter(owned[0].errors.values()))
        yield Signal(
            "gpu_unavailable",
            cause=cause_of(code),
            summary=f"the driver has stopped answering (NVML code {code}); training goes on unwatched",
            evidence={"code": code, "text": None},
        )


class SamplerStalled(BaseDetector):
    """No reading at all any more although time goes on: a query never returned."""

    record = CodeRecord(
        code="sampler_stalled",
        family="stuck",
        severity=Severity.WARNING,
        title="GPU readings have stopped",
        condition="No reading for 3 sample periods, at least 30 s, while other facts arrive.",
        silent="When readings come and only say errors (gpu_unavailable); after the end.",
        evidence={"silent_s": "seconds since the last reading"},
        thresholds=(
            Threshold(
                name="for_s",
                default=30.0,
                unit="s",
                reason="3 periods of the slowest sampling in use (10 s); one slow driver call is no stall",
            ),
        ),
        route=Route.TICKET,
        runbook="A driver query is blocked. Look for hung nvidia-smi processes and Xid messages; training itself may be fine.",
    )

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        last_s = timeline.last_reading_s
        if last_s is None or timeline.run.end is not None or not timeline.owned:
            return
        period_s = timeline.header.sample_period_s or 1.0
        silent_s = timeline.since(last_s)
        if silent_s > max(3.0 * period_s, view.limit(self.record, "for_s")):
            yield Signal(
                "sampler_stalled",
                summary=f"no GPU reading for {silent_s:.0f} s: a driver query does not return",
                evidence={"silent_s": round(silent_s, 1)},
            )


def everything_fails(device: DeviceTrack) -> bool:
    """Whether the newest reading answered nothing, and what is wrong is more than "not supported"."""
    if device.last_reading_s is None or not device.errors:
        return False
    if device.last_answer_s is not None and device.last_answer_s >= device.last_reading_s:
        return False
    return any(code not in UNSUPPORTED_CODES for code in device.errors.values()) or bool(LOST_CODES & set(device.errors.values()))


def cause_of(code: str | int | None) -> str:
    """The closed word for a backend's code (NVML API reference, nvmlReturn_t)."""
    words: dict[str | int, str] = {12: "library_not_found", 18: "driver_mismatch", 4: "permission", 9: "driver_mismatch"}
    if code in GpuUnavailable.record.causes:
        return str(code)
    return words.get(code, "unknown") if code is not None else "unknown"


DETECTORS = (GpuLost, GpuUnavailable, Hang, SamplerStalled)
