"""fp32 on a card that multiplies several times faster in half precision."""

from __future__ import annotations

from collections.abc import Iterable

from trainbudget.engine.cards import card_of
from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.detect.efficiency.evidence import capability, settled
from trainbudget.engine.detect.efficiency.settings_words import full_precision, tf32
from trainbudget.findings import CodeRecord, Route, Severity, Threshold
from trainbudget.quantities import percent


class PrecisionUnused(BaseDetector):
    """Tensor cores are there and fp32 passes them by."""

    record = CodeRecord(
        code="precision_unused",
        family="efficiency",
        severity=Severity.INFO,
        title="fp32 on a card with tensor cores",
        condition="Weights are fp32, nothing is autocast and TF32 is not on, on a card of compute capability 7.0 or newer. A "
        "warning where tensor activity is measured and below 2 %.",
        silent="Where dtype, autocast or the card's capability are unknown; with TF32; where tensor cores are seen at work.",
        evidence={
            "parameter_dtype": "of the weights",
            "autocast": "precision of autocast, null or 'no' for none",
            "compute_capability": "of the card",
            "tensor_active_ratio": "share of time with tensor cores at work, where the card tells",
        },
        thresholds=(
            Threshold(
                name="capability", default=7.0, unit="compute capability", reason="the first with tensor cores (Volta, fp16)"
            ),
            Threshold(
                name="tensor_active_ratio",
                default=0.02,
                unit="ratio",
                reason="matrix kernels in half precision show 10 % and more",
            ),
            Threshold(name="steps", default=50.0, unit="steps", reason="tests of a few steps are often run in fp32 on purpose"),
        ),
        levers=("L12", "L13"),
        route=Route.WEEKLY,
        runbook="Try bf16 autocast (fp16 before compute capability 8.0): 2.3 times the samples a second of strict fp32 in a "
        "published A100 measurement. Where fp32 is needed, TF32 gives most of it.",
    )
    every_s = 30.0
    clear_s = 60.0

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        if not settled(timeline, view.limit(self.record, "steps")):
            return
        if full_precision(timeline) is not True or tf32(timeline) is True:
            return
        model = timeline.model
        for device in timeline.owned:
            card = card_of(device.info.name)
            able = capability(device) or (card.capability if card is not None else None)
            if able is None or able < view.limit(self.record, "capability"):
                continue
            active = device.last.tensor_active_ratio if device.last is not None else None
            idle = active is not None and active < view.limit(self.record, "tensor_active_ratio")
            if active is not None and not idle:
                continue
            yield Signal(
                "precision_unused",
                gpu=device.index,
                severity=Severity.WARNING if idle else Severity.INFO,
                summary="trains in fp32 on a card with tensor cores"
                + (f", which are at work {percent(active)} of the time" if idle else ""),
                evidence={
                    "parameter_dtype": model.parameter_dtype if model is not None else None,
                    "autocast": model.autocast if model is not None else None,
                    "compute_capability": able,
                    "tensor_active_ratio": active,
                },
            )
