"""A device works on a PCIe link far below what it can do."""

from __future__ import annotations

from collections.abc import Iterable

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.detect.hardware.load import load_of, peers_of
from trainbudget.engine.timeline import Timeline
from trainbudget.engine.tracks.device import DeviceTrack
from trainbudget.engine.tracks.series import median
from trainbudget.findings import CodeRecord, Route, Severity, Threshold
from trainbudget.quantities import percent

#: Transfers a second and lane by generation, in 10^9 (PCI-SIG base specifications 1.0 to 6.0).
RATE_GT_S = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}


class PcieDegraded(BaseDetector):
    """Under load the link is slower than the device's best by half or more."""

    record = CodeRecord(
        code="pcie_degraded",
        family="hardware",
        severity=Severity.WARNING,
        title="A PCIe link is far below its best",
        condition="For a minute of load (utilization above 50 %) the link has half of the device's best bandwidth or less "
        "while a peer of the same model has twice as much; alone, or with equal peers, a quarter or less (info for a half).",
        silent="At rest, where links sleep at generation 1; where generation or width is not told.",
        evidence={
            "gen": "generation under load",
            "width": "lanes under load",
            "gen_max": "the device's best generation",
            "width_max": "its lanes",
            "bandwidth_ratio": "of the best",
            "peer_ratio": "bandwidth of the best peer over this one's",
        },
        thresholds=(
            Threshold(
                name="bandwidth_ratio", default=0.5, unit="ratio", reason="one generation or half of the lanes is the least step"
            ),
            Threshold(
                name="alone_ratio",
                default=0.25,
                unit="ratio",
                reason="boards wire x16 slots with 8 lanes or one generation less; without a better peer only more than that "
                "is a fault",
            ),
        ),
        levers=(),
        route=Route.TICKET,
        runbook="Re-seat the card or its riser, look for AER messages in the kernel log, check the slot. Loading, offload and "
        "exchange between cards run at the link's speed.",
    )
    every_s = 30.0
    clear_s = 60.0

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        for device in timeline.owned:
            last = device.last
            if last is None or last.pcie_gen is None or last.pcie_width is None or not self._below(device):
                continue
            yield from self._judge(view, device)

    def _below(self, device: DeviceTrack) -> bool:
        info, last = device.info, device.last
        if last is None or info.pcie_gen_max is None or info.pcie_width_max is None:
            return True  # its own best is not told: peers may say
        return (last.pcie_gen or 0) < info.pcie_gen_max or (last.pcie_width or 0) < info.pcie_width_max

    def _judge(self, view: View, device: DeviceTrack) -> Iterable[Signal]:
        timeline = view.timeline
        link = _link_under_load(timeline, device)
        if link is None:
            return
        gen, width, bandwidth = link
        info = device.info
        own = _bandwidth(info.pcie_gen_max, info.pcie_width_max)
        peers = [p[2] for d in peers_of(timeline, device) if (p := _link_under_load(timeline, d)) is not None]
        best = own if own is not None else max(peers, default=None)
        if best is None or bandwidth > view.limit(self.record, "bandwidth_ratio") * best:
            return
        better_peer = bool(peers) and max(peers) >= 2.0 * bandwidth
        fault = better_peer or bandwidth <= view.limit(self.record, "alone_ratio") * best
        yield Signal(
            "pcie_degraded",
            gpu=device.index,
            severity=Severity.WARNING if fault else Severity.INFO,
            summary=f"GPU {device.index} works on PCIe {gen} x{width}, {percent(bandwidth / best)} of its best"
            + (", its neighbour on the full link" if better_peer else ""),
            evidence={
                "gen": gen,
                "width": width,
                "gen_max": info.pcie_gen_max,
                "width_max": info.pcie_width_max,
                "bandwidth_ratio": round(bandwidth / best, 4),
                "peer_ratio": round(max(peers) / bandwidth, 2) if peers else None,
            },
        )


def _link_under_load(timeline: Timeline, device: DeviceTrack) -> tuple[int, int, float] | None:
    """Generation, lanes and bandwidth that nine of ten busy readings agree not to exceed; None where unknown."""
    load = load_of(timeline, device)
    if load is None:
        return None
    links = [(s.pcie_gen, s.pcie_width) for s in load.samples if s.pcie_gen is not None and s.pcie_width is not None]
    known = sorted(
        (b, gen, width)
        for gen, width in links
        if gen is not None and width is not None and (b := _bandwidth(gen, width)) is not None
    )
    if 2 * len(known) < len(load.samples) or median([b for b, _, _ in known]) is None:
        return None
    bandwidth, gen, width = known[min(len(known) - 1, int(0.9 * len(known)))]
    return gen, width, bandwidth


def _bandwidth(gen: int | None, width: int | None) -> float | None:
    rate = RATE_GT_S.get(gen) if gen is not None else None
    return rate * width if rate is not None and width else None
