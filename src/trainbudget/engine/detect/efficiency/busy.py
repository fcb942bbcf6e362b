"""Busy but slow: utilization says 100 %, everything else says little is being done."""

from __future__ import annotations

from collections.abc import Iterable

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.detect.efficiency.evidence import steps_flow, tokens_per_s
from trainbudget.engine.mfu import model_flops_utilization
from trainbudget.engine.timeline import Timeline
from trainbudget.engine.tracks.device import DeviceTrack, Sample
from trainbudget.findings import CodeRecord, Route, Severity, Threshold
from trainbudget.quantities import percent

#: Findings that already say why a busy GPU does little.
UPSTREAM = frozenset(
    {
        "hang",
        "collective_hang",
        "gpu_lost",
        "thermal_throttle",
        "power_cap",
        "pcie_degraded",
        "memory_pressure",
        "memory_fragmentation",
        "system_memory_spill",
        "communication_bound",
        "straggler",
        "recompile",
        "optimizer_offload",
    }
)
#: Clock-event reasons that hold the clock down; a throttled card is slow for that reason.
_HELD_DOWN = frozenset(
    {"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "applications_clocks_setting"}
)
#: Readings of the last minute that make a mean.
LEAST_READINGS = 5


class BusyButSlow(BaseDetector):
    """The second opinion on utilization, which only says that some kernel was running."""

    record = CodeRecord(
        code="busy_but_slow",
        family="efficiency",
        severity=Severity.WARNING,
        title="The GPU is busy and does little",
        condition="Utilization is 90 % or more, throughput is below 60 % of the plan, and power is below 50 % of its limit (or "
        "SM activity below 50 %, or model FLOPs below 15 % of the peak). Without a plan: two of the last three, as information.",
        silent="In warm-up, in evaluation, saving and compilation; while steps do not come; while the clock is held down or "
        "another finding names the cause (throttling, memory pressure, communication, a straggler); where the plan is met.",
        evidence={
            "utilization_ratio": "mean of the last minute",
            "throughput_ratio": "measured over planned (step time, else tokens a second); null without a plan",
            "power_ratio": "mean power over the limit",
            "sm_active_ratio": "share of SMs with work, where the card tells",
            "mfu_ratio": "model FLOPs a second over the card's peak, where both are known",
            "step_time_s": "median step",
        },
        thresholds=(
            Threshold(
                name="utilization_ratio",
                default=0.90,
                unit="ratio",
                reason="below it the GPU has pauses, which have findings of their own",
            ),
            Threshold(
                name="throughput_ratio",
                default=0.60,
                unit="ratio",
                reason="an uncalibrated prediction is right to 30 %; below 60 % the run is not what was planned",
            ),
            Threshold(
                name="power_ratio",
                default=0.50,
                unit="ratio",
                reason="matrix multiplication and memory traffic both draw 70-100 % of the limit; half of it is a card whose "
                "kernels are too small to fill it",
            ),
            Threshold(name="sm_active_ratio", default=0.50, unit="ratio", reason="half of the card's SMs have no work at all"),
            Threshold(
                name="mfu_ratio",
                default=0.15,
                unit="ratio",
                reason="published trainings reach 21-57 % (PaLM, arXiv 2204.02311, table 3, and later reports)",
            ),
        ),
        levers=("L16", "L08", "L15"),
        route=Route.WEEKLY,
        runbook="Take a profile of ten steps (torch.profiler). Many kernels of a few microseconds: larger batch, torch.compile, "
        "fused attention and optimizer. Long kernels at low power: memory-bound operations, fp32, or another process on the "
        "card.",
    )
    every_s = 30.0  # it reads minutes of power and clocks
    hold_s = 30.0
    clear_s = 120.0

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        if timeline.steps.warming or not steps_flow(timeline) or UPSTREAM & view.raised:
            return
        if not timeline.steps.enough(timeline.steps.window()):
            return
        throughput = throughput_ratio(timeline)
        if throughput is not None and throughput >= view.limit(self.record, "throughput_ratio"):
            return
        for device in timeline.owned:
            utilization = device.utilization_last_minute(minimum=LEAST_READINGS)
            if utilization is None or utilization < view.limit(self.record, "utilization_ratio"):
                continue
            samples = device.since(device.window[-1].t_s - 60.0)
            seen = {
                "power_ratio": _power_ratio(device, samples),
                "sm_active_ratio": _mean([s.sm_active_ratio for s in samples]),
                "mfu_ratio": model_flops_utilization(timeline),
            }
            low = [name for name, value in seen.items() if value is not None and value < view.limit(self.record, name)]
            if not low or (throughput is None and len(low) < 2) or _held_down(device, samples):
                continue
            yield Signal(
                "busy_but_slow",
                gpu=device.index,
                severity=Severity.INFO if throughput is None else Severity.WARNING,
                summary=_summary(utilization, throughput, seen),
                evidence={
                    "utilization_ratio": round(utilization, 3),
                    "throughput_ratio": None if throughput is None else round(throughput, 3),
                    **{name: None if value is None else round(value, 3) for name, value in seen.items()},
                    "step_time_s": timeline.steps.median_s(),
                },
            )


def throughput_ratio(timeline: Timeline) -> float | None:
    """Measured work a second over planned, or None without a plan. Tokens a second, where given, beat the step time."""
    planned_tokens = timeline.budget_value("tokens_per_s")
    measured = tokens_per_s(timeline) if planned_tokens else None
    if planned_tokens and measured is not None:
        return measured / planned_tokens
    planned_s, median_s = timeline.budget_value("step_time_s"), timeline.steps.median_s()
    return planned_s / median_s if planned_s and median_s else None


def _mean(values: list[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if len(known) >= LEAST_READINGS else None


def _power_ratio(device: DeviceTrack, samples: list[Sample]) -> float | None:
    limit_w = device.info.power_limit_w or device.info.power_default_limit_w
    mean_w = _mean([s.power_w for s in samples])
    return mean_w / limit_w if limit_w and mean_w is not None and not device.info.mig else None


def _held_down(device: DeviceTrack, samples: list[Sample]) -> bool:
    """Whether the clock was held down in the last minute, by its reasons or by its fall below what it was at first."""
    if any(s.throttle and _HELD_DOWN.intersection(s.throttle) for s in samples):
        return True
    clocks = [s.sm_clock_hz for s in samples if s.sm_clock_hz is not None]
    usual = device.load.clock_hz
    # Under load a boost clock wanders by a tenth; a fifth below what the card has shown is a card that is held down.
    return bool(clocks) and usual is not None and sum(clocks) / len(clocks) < 0.8 * usual


def _summary(utilization: float, throughput: float | None, seen: dict[str, float | None]) -> str:
    words = {
        "power_ratio": "{} of its power limit",
        "sm_active_ratio": "{} SM activity",
        "mfu_ratio": "{} of peak FLOPs",
    }
    parts = [words[name].format(percent(value)) for name, value in seen.items() if value is not None]
    plan = "" if throughput is None else f"{percent(throughput)} of the planned speed, "
    return f"utilization {percent(utilization)}, but {plan}{', '.join(parts)}"
