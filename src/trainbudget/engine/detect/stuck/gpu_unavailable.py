"""There is no device data at all."""

from __future__ import annotations

from collections.abc import Iterable

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.detect.devices import any_lost, everything_fails
from trainbudget.engine.timeline import Timeline
from trainbudget.findings import CodeRecord, Route, Severity, Threshold

#: What a backend says when there is simply no GPU and none was asked for.
NO_GPU = ("none", "no_gpu")
#: NVML's return codes in words (NVML API reference, nvmlReturn_t).
NVML_WORDS = {
    "4": "this user may not ask the driver",
    "9": "the driver is not loaded",
    "12": "the driver's library libnvidia-ml is not found",
    "18": "the driver and its library have different versions",
    "999": "the driver answers with an unknown error",
}


class GpuUnavailable(BaseDetector):
    """There is no device data: from the start, or since the driver as a whole stopped answering."""

    record = CodeRecord(
        code="gpu_unavailable",
        family="stuck",
        severity=Severity.WARNING,
        title="No GPU data",
        condition="The backend could not be opened, or every query of every own device has failed for a minute.",
        silent="When the machine has no GPU and none was asked for; when single queries fail (monitor_degraded); when the "
        "device is lost (gpu_lost).",
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
        if timeline.run.end is not None:
            return
        error = timeline.header.backend_error
        if error is not None and timeline.last_reading_s is None and str(error.code) not in NO_GPU:
            words = error.text or NVML_WORDS.get(str(error.code), f"NVML code {error.code}")
            yield self._signal(error.code, error.text, f"no GPU data: {words}")
            return
        owned = timeline.owned
        if not owned or not owned[0].errors or not all(everything_fails(d) for d in owned) or any_lost(timeline):
            return
        since_s = max(max(d.error_since_s.values(), default=timeline.now_s) for d in owned)
        if timeline.since(since_s) < view.limit(self.record, "for_s"):
            return
        code = next(iter(owned[0].errors.values()))
        going = "training goes on unwatched" if timeline.stalled_since_s is None else "and no step comes"
        yield self._signal(code, _words(timeline), f"the driver has stopped answering (NVML code {code}); {going}")

    def _signal(self, code: str | int | None, text: str | None, summary: str) -> Signal:
        cause = cause_of(code, text)
        return Signal("gpu_unavailable", cause=cause, summary=summary, evidence={"code": code, "text": text})


def _words(timeline: Timeline) -> str | None:
    """What the backend said last, where it said anything."""
    for moment in reversed(timeline.run.moments):
        if moment.event == "backend":
            text = moment.detail.get("text")
            return str(text) if text is not None else None
    return None


def cause_of(code: str | int | None, text: str | None = None) -> str:
    """The closed word for a backend's code (NVML API reference, nvmlReturn_t), else for its own words."""
    if code in GpuUnavailable.record.causes:
        return str(code)
    words: dict[str | int, str] = {4: "permission", 9: "driver_mismatch", 12: "library_not_found", 18: "driver_mismatch"}
    number = int(code) if isinstance(code, str) and code.isdigit() else code
    if number is not None and number in words:
        return words[number]
    lowered = (text or "").lower()
    for sign, cause in (
        ("mismatch", "driver_mismatch"),
        ("permission", "permission"),
        ("cpu-only", "cpu_build"),
        ("library not found", "library_not_found"),
        ("libnvidia-ml", "library_not_found"),
    ):
        if sign in lowered:
            return cause
    return "unknown"
