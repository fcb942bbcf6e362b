"""Memory that grows at rest."""

from __future__ import annotations

from collections.abc import Iterable

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.detect.memory.growth import MIB, growth_of
from trainbudget.engine.detect.memory.meeting import GROWTH_EVIDENCE, SPANS, Kept, growth_evidence, rest_meeting
from trainbudget.engine.detect.memory.standing import STANDING_EVIDENCE
from trainbudget.engine.tracks.device import DeviceTrack
from trainbudget.findings import CodeRecord, Route, Severity, Threshold


class MemoryLeak(BaseDetector):
    """What is held between steps grows and does not come back."""

    record = CodeRecord(
        code="memory_leak",
        family="memory",
        severity=Severity.WARNING,
        title="GPU memory leaks",
        condition="What is allocated between steps grows with a significant trend (Mann-Kendall z >= 3.3) that still lasts; "
        "warning where it meets the limit within the run (or the limit is unknown), information where it does not.",
        silent="In the first 5 steps of a session; for peaks that follow the length of the batch; where the growth of an epoch "
        "is given back at its end (information only, until the first epoch's planned end has passed or the limit comes first); "
        "where the allocator is not read (its cache grows by itself).",
        evidence={**STANDING_EVIDENCE, **GROWTH_EVIDENCE},
        thresholds=(
            *SPANS,
            Threshold(
                name="sure_steps",
                default=200.0,
                unit="steps",
                reason="a growth that does not meet the limit is only worth a word when it has lasted",
            ),
        ),
        levers=(),
        route=Route.TICKET,
        runbook="Look for tensors that outlive their step: losses or outputs appended to a list without .detach() or .item(), "
        "metrics that keep predictions, retain_graph, hooks that are registered again and again. If it climbs once an epoch, "
        "look at what runs once an epoch. torch.cuda.memory._record_memory_history names the lines.",
    )
    every_s = 15.0
    clear_s = 120.0

    def __init__(self) -> None:
        self._kept = Kept()

    def check(self, view: View) -> Iterable[Signal]:
        if not view.timeline.run.training:
            return
        now_s = view.timeline.now_s
        for device in view.timeline.owned:
            growth = growth_of(device.memory, view.timeline)
            if growth is None:
                continue
            kept = self._kept.get(device.index, growth, now_s)
            yield from kept if kept is not None else self._kept.put(device.index, growth, now_s, self._signals(device, view))

    def _signals(self, device: DeviceTrack, view: View) -> list[Signal]:
        found = rest_meeting(device, view, self.record)
        if found is None:
            return []
        growth, met, now = found
        meets = met is not None and met.due and met.within_run
        if not meets and growth.span_steps < view.limit(self.record, "sure_steps"):
            return []
        where = f", the limit is met at step {met.at_step:.0f}" if met is not None and meets else ""
        return [
            Signal(
                "memory_leak",
                gpu=device.index,
                severity=Severity.WARNING if meets or now.limit is None else Severity.INFO,
                summary=f"memory at rest grows by {_amount(growth.bytes_per_step)} a step{where}",
                evidence={**now.evidence(), **growth_evidence(growth)},
                forecast=met.forecast if met is not None and meets else None,
            )
        ]


def _amount(value_bytes: float) -> str:
    """`0.42 MiB`, `8.3 MiB`, `100 MiB`, `1.2 GiB`."""
    mib = value_bytes / MIB
    if mib >= 1024.0:
        return f"{mib / 1024.0:.1f} GiB"
    return f"{mib:.0f} MiB" if mib >= 9.95 else f"{mib:.1f} MiB" if mib >= 0.95 else f"{mib:.2g} MiB"
