"""Faults that the driver reports: memory errors and Xid messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import takewhile

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.findings import CodeRecord, Route, Severity, Threshold

#: Corrected errors are counted over this time.
RATE_WINDOW_S = 600.0


class EccErrors(BaseDetector):
    """Memory errors appear while the run goes on."""

    record = CodeRecord(
        code="ecc_errors",
        family="hardware",
        severity=Severity.WARNING,
        title="GPU memory errors",
        condition="The counter of uncorrected errors rises during the run (critical), or that of corrected ones by 100 in ten "
        "minutes.",
        silent="For errors counted before the run; for single corrected errors; where the card has no such counters.",
        evidence={
            "uncorrected": "new ones since the run began",
            "corrected": "new ones since the run began",
            "corrected_in_window": "new ones in the last ten minutes",
        },
        thresholds=(
            Threshold(
                name="corrected",
                default=100.0,
                unit="errors in 10 min",
                reason="radiation flips a bit in days; hundreds in minutes are a failing cell, thousands a second were seen "
                "before a hang",
            ),
        ),
        levers=(),
        route=Route.PAGE,
        runbook="Drain the node and run the vendor's diagnosis; have the card replaced before it fails. After uncorrected errors "
        "results since the last good checkpoint may be wrong.",
    )
    every_s = 15.0
    clear_s = 600.0

    def __init__(self) -> None:
        self._first: dict[int, tuple[float, float]] = {}  # gpu -> corrected, uncorrected at the first look
        self._corrected: dict[int, deque[tuple[float, float]]] = {}

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        for device in timeline.owned:
            last = device.last
            if last is None or (last.ecc_corrected is None and last.ecc_uncorrected is None):
                continue
            corrected, uncorrected = last.ecc_corrected or 0.0, last.ecc_uncorrected or 0.0
            first = self._first.setdefault(device.index, (corrected, uncorrected))
            if corrected < first[0] or uncorrected < first[1]:  # the driver was reloaded: counters start anew
                first = self._first[device.index] = (corrected, uncorrected)
                self._corrected.pop(device.index, None)
            if corrected == first[0] and uncorrected == first[1]:
                continue
            recent = self._corrected.setdefault(device.index, deque([(timeline.now_s, first[0])], maxlen=64))
            recent.append((timeline.now_s, corrected))
            while len(recent) > 1 and recent[0][0] < timeline.now_s - RATE_WINDOW_S:
                recent.popleft()
            in_window = corrected - recent[0][1]
            new_bad = uncorrected - first[1]
            if new_bad <= 0.0 and in_window < view.limit(self.record, "corrected"):
                continue
            kind = f"{new_bad:.0f} uncorrected" if new_bad > 0.0 else f"{in_window:.0f} corrected"
            yield Signal(
                "ecc_errors",
                gpu=device.index,
                severity=Severity.CRITICAL if new_bad > 0.0 else Severity.WARNING,
                summary=f"GPU {device.index}: {kind} memory {'error' if new_bad == 1.0 else 'errors'}"
                f"{'' if new_bad > 0.0 else ' in ten minutes'}",
                evidence={
                    "uncorrected": new_bad,
                    "corrected": corrected - first[0],
                    "corrected_in_window": in_window,
                },
            )


#: What NVIDIA's Xid catalogue calls a fault of hardware, bus or driver: the device or node must be looked after.
_FATAL = {
    48: "double-bit memory error",
    62: "internal micro-controller halt",
    64: "row remapping failed",
    74: "NVLink error",
    79: "fell off the bus",
    95: "uncontained memory error",
    119: "GSP firmware time-out",
    120: "GSP firmware error",
    140: "unrecovered memory error",
}
#: ... and what it calls a fault of the application, or a note about one that was handled.
_APPLICATION = {
    13: "illegal instruction or access in a kernel",
    31: "page fault in a kernel",
    43: "a kernel stopped for an error of its own",
    45: "clean-up after another error",
    63: "a memory row was remapped",
    92: "many corrected memory errors",
    94: "contained memory error",
}


class Xid(BaseDetector):
    """The driver wrote an Xid message about one of our devices."""

    record = CodeRecord(
        code="xid",
        family="hardware",
        severity=Severity.WARNING,
        title="The driver reports a GPU error (Xid)",
        condition="An Xid event arrives; critical for those that NVIDIA's catalogue puts down to hardware, bus or firmware, "
        "info for mere consequences (45) and remapped rows (63).",
        silent="For the same number on the same device again: it is counted.",
        evidence={"xid": "number", "meaning": "as in NVIDIA's Xid catalogue, where it is a common one", "count": "seen so far"},
        levers=(),
        route=Route.PAGE,
        runbook="Look the number up in NVIDIA's Xid catalogue. 79, 74, 119: drain the node. 13, 31: a bug in a kernel or an "
        "index out of range; run with CUDA_LAUNCH_BLOCKING=1 to find it.",
    )

    def __init__(self) -> None:
        self._seen: set[tuple[int | None, int]] = set()
        self._looked_s = -1.0

    def check(self, view: View) -> Iterable[Signal]:
        moments = view.timeline.run.moments
        if not moments or moments[-1].t_s < self._looked_s:
            return
        fresh = list(takewhile(lambda m: m.t_s >= self._looked_s, reversed(moments)))
        self._looked_s = view.timeline.now_s
        for moment in reversed(fresh):
            xid, gpu = moment.detail.get("xid"), moment.detail.get("gpu")
            if moment.event != "xid" or isinstance(xid, bool) or not isinstance(xid, int):
                continue
            gpu = gpu if isinstance(gpu, int) else None
            if (gpu, xid) in self._seen or len(self._seen) >= 256:
                continue
            self._seen.add((gpu, xid))
            meaning = _FATAL.get(xid) or _APPLICATION.get(xid)
            count = sum(1 for m in moments if m.event == "xid" and m.detail.get("xid") == xid and m.detail.get("gpu") == gpu)
            where = "" if gpu is None else f" on GPU {gpu}"
            yield Signal(
                "xid",
                gpu=gpu,
                once=True,
                severity=_severity(xid),
                summary=f"Xid {xid}{where}{f': {meaning}' if meaning else ''}",
                evidence={"xid": xid, "meaning": meaning, "count": count},
            )


def _severity(xid: int) -> Severity:
    if xid in _FATAL:
        return Severity.CRITICAL
    return Severity.INFO if xid in (45, 63) else Severity.WARNING
