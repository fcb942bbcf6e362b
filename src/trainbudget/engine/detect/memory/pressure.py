"""Living at the edge: hardly any room, flushes that slow the steps, more than was planned."""

from __future__ import annotations

from collections.abc import Iterable

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.detect.memory.left import LEAST_LINES, resume_excess
from trainbudget.engine.detect.memory.spill import PLATFORMS, slowed
from trainbudget.engine.detect.memory.standing import GIB, STANDING_EVIDENCE, Standing, gib, standing
from trainbudget.engine.tracks.device import DeviceTrack
from trainbudget.engine.tracks.memory import MemoryTrack
from trainbudget.findings import CodeRecord, Route, Severity, Threshold

#: Findings that say why there is no room, and more than that.
_EXPLAINED = frozenset(
    {
        "memory_leak",
        "oom_forecast",
        "foreign_memory",
        "stale_holder",
        "rank_extra_memory",
        "resume_excess",
        "eval_accumulation",
    }
)


class MemoryPressure(BaseDetector):
    """The run fits, with nothing to spare."""

    record = CodeRecord(
        code="memory_pressure",
        family="memory",
        severity=Severity.WARNING,
        title="Hardly any GPU memory is left",
        condition="The allocator flushes its cache in every second step or more (the steps wait for it); or the peak leaves less "
        "than 3 % of the limit (information: 8 %); or the cache leaves less than 1 GiB for libraries outside of it.",
        silent="For a cache that is large but can be given back; in trials; while the driver moves data to the host "
        "(system_memory_spill); where a leak, others on the device, a resume or an evaluation are the reason; without a limit.",
        evidence={
            **STANDING_EVIDENCE,
            "room_bytes": "limit minus context, others and the highest peak",
            "free_bytes": "free on the device",
            "retries": "flushes in the last steps",
            "retries_per_step": "their rate",
            "slow_ratio": "step time now over the first steady steps",
            "why": "flushes, room or starved",
        },
        thresholds=(
            Threshold(
                name="retries_per_step",
                default=0.5,
                unit="1/step",
                reason="each flush frees and re-allocates every cached block and waits for the device: 0.1-1 s",
            ),
            Threshold(
                name="warning_ratio",
                default=0.03,
                unit="ratio",
                reason="lazily loaded kernels, workspaces and NCCL channels still take some hundred MiB late in a run",
            ),
            Threshold(name="info_ratio", default=0.08, unit="ratio", reason="a batch 10 % longer does not fit (lever L10)"),
            Threshold(
                name="free_bytes",
                default=1.0 * GIB,
                unit="bytes",
                reason="NCCL and cuBLAS allocate up to 1 GiB outside the allocator, mid-step, and do not make it flush",
            ),
        ),
        levers=("L28", "L37", "L09", "L10"),
        route=Route.TICKET,
        runbook="Lower the micro-batch and raise accumulation, or free the cache's unused part (expandable_segments). If the "
        "steps became slower when the flushes began, that time is the price.",
    )
    every_s = 15.0
    hold_s = 10.0
    clear_s = 120.0

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        if not timeline.run.training or not timeline.run.started or "system_memory_spill" in view.raised:
            return
        for device in timeline.owned:
            if device.memory.session_peak is None or device.memory.session is not timeline.run.session:
                continue
            signal = self._flushes(device, view) or self._starved(device, view) or self._room(device, view)
            if signal is not None and signal.evidence["why"] == "starved" and "memory_fragmentation" in view.raised:
                continue  # the same cache, said already
            if signal is not None:
                yield signal

    def _flushes(self, device: DeviceTrack, view: View) -> Signal | None:
        track = device.memory
        if len(track.retries) < 3 or track.retries[-1][2] <= track.retries[0][2]:
            return None
        rate = retry_rate(track)
        if rate is None or rate[1] < view.limit(self.record, "retries_per_step"):
            return None
        median, baseline = view.timeline.steps.median_s(), view.timeline.steps.baseline_s()
        slow = median / baseline if median and baseline else None
        slower = f", steps take {slow:.1f} times as long" if slow is not None and slow > 1.15 else ""
        return self._signal(
            device,
            standing(device, view.timeline),
            Severity.WARNING,
            f"the allocator flushes its cache {rate[1]:.1f} times a step{slower}",
            {"retries": rate[0], "retries_per_step": round(rate[1], 2), "slow_ratio": slow, "why": "flushes"},
        )

    def _starved(self, device: DeviceTrack, view: View) -> Signal | None:
        """The cache has grown until nothing is left for libraries that allocate beside it."""
        track, last = device.memory, device.memory.last
        excess = track.excess_bytes
        if excess is None or last is None or last.reserved_bytes is None or excess < 1.0 * GIB:
            return None
        now = standing(device, view.timeline)
        if now.capacity is None or track.reserved_begin is None or last.reserved_bytes <= track.reserved_begin + 1.0 * GIB:
            return None
        room = now.capacity - last.reserved_bytes
        if room >= view.limit(self.record, "free_bytes"):
            return None
        return self._signal(
            device,
            now,
            Severity.WARNING,
            f"{gib(max(0.0, room))} left for libraries: the cache holds {gib(excess)} that no step has needed",
            {"free_bytes": device.last.memory_free_bytes if device.last is not None else None, "why": "starved"},
        )

    def _room(self, device: DeviceTrack, view: View) -> Signal | None:
        track = device.memory
        limit = device.info.memory_limit_bytes or device.info.memory_total_bytes
        # Cheap question first: most runs are far away.
        if track.rest.total < 5 or limit is None:
            return None
        if (track.session_peak or 0.0) < 0.6 * limit and not device.info.unified_memory:
            return None
        if not view.raised.isdisjoint(_EXPLAINED):
            return None
        now = standing(device, view.timeline)
        if now.capacity is None or now.limit is None or now.peak is None:
            return None
        room = now.capacity - now.peak
        if room >= view.limit(self.record, "info_ratio") * now.limit:
            return None
        host = view.timeline.header.host
        if host is not None and host.platform in PLATFORMS and (slowed(view.timeline, steps=1) or 0.0) >= 2.0:
            return None  # it may be spilling: that is another finding
        tight = room < view.limit(self.record, "warning_ratio") * now.limit
        return self._signal(
            device,
            now,
            Severity.WARNING if tight else Severity.INFO,
            f"the peak leaves {gib(max(0.0, room))} of {gib(now.limit)}",
            {"room_bytes": round(room), "why": "room"},
        )

    @staticmethod
    def _signal(device: DeviceTrack, now: Standing, severity: Severity, summary: str, more: dict[str, object]) -> Signal:
        return Signal(
            "memory_pressure",
            gpu=device.index,
            severity=severity,
            summary=summary,
            evidence={**now.evidence(), **more},
        )


#: Steps over which flushes are counted: fewer say nothing about a rate.
RATE_STEPS = 5


def retry_rate(track: MemoryTrack) -> tuple[float, float] | None:
    """(retries, retries per step) over the newest lines that span at least 5 steps, or None."""
    newest = track.retries[-1]
    if newest[1] is None:
        return None
    for _, step, retries in reversed(track.retries):
        if step is not None and newest[1] - step >= RATE_STEPS:
            count = newest[2] - retries
            return count, count / (newest[1] - step)
    return None


def explained_by_resume(device: DeviceTrack, view: View) -> bool:
    """Whether the excess came with a resume; not told before the resumed session has settled."""
    session = view.timeline.run.session
    if session is None or session.resumed_at_step is None or device.memory.lines == 0:
        return False
    return device.memory.rest.total < LEAST_LINES or resume_excess(device, view.timeline) is not None


class MemoryOverBudget(BaseDetector):
    """The peak exceeds what was planned."""

    record = CodeRecord(
        code="memory_over_budget",
        family="memory",
        severity=Severity.WARNING,
        title="Peak memory exceeds its budget",
        condition="The highest allocated memory of the session (else used, without context) exceeds the budget by 10 %, its "
        "interval included.",
        silent="Without a budget for memory; when an excess after a resume explains it (resume_excess).",
        evidence={**STANDING_EVIDENCE, "budget_bytes": "planned", "budget_high_bytes": "upper end of its interval"},
        thresholds=(Threshold(name="over_ratio", default=0.10, unit="ratio", reason="a traced prediction is right to 3-5 %"),),
        levers=("L09", "L10", "L37"),
        route=Route.WEEKLY,
        runbook="See which category grew (plan) and whether a longer batch came.",
    )
    every_s = 30.0

    def check(self, view: View) -> Iterable[Signal]:
        budget = view.timeline.budget.get("memory_peak_bytes")
        if budget is None:
            return
        high = max(budget.high or 0.0, budget.value * (1.0 + view.limit(self.record, "over_ratio")))
        for device in view.timeline.owned:
            peak = device.memory.session_peak if device.memory.session is view.timeline.run.session else None
            if peak is None and device.memory.lines == 0 and device.peak_used_bytes is not None:
                peak = device.peak_used_bytes - standing(device, view.timeline).context
            if peak is not None and peak > high and not explained_by_resume(device, view):
                yield Signal(
                    "memory_over_budget",
                    gpu=device.index,
                    summary=f"peak {gib(peak)}, {gib(budget.value)} planned",
                    evidence={
                        **standing(device, view.timeline).evidence(),
                        "budget_bytes": budget.value,
                        "budget_high_bytes": round(high),
                    },
                )
