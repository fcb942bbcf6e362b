"""Memory that is paid for and empty, or kept empty at the price of time."""

from __future__ import annotations

from collections.abc import Iterable

from trainbudget.engine.cards import GIB, card_of, smaller_cards
from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.detect.efficiency.evidence import capability, fullest, rest_bytes, settled
from trainbudget.engine.detect.efficiency.settings_words import full_precision, offloads, recomputes, settings_of, truth
from trainbudget.engine.timeline import Timeline
from trainbudget.findings import CodeRecord, Route, Severity, Threshold
from trainbudget.quantities import percent

#: Recomputing keeps about a third of the activations (measured on a decoder: 235 to 76 MiB); without it they are this many times
#: what is seen now.
KEPT_BY_RECOMPUTE = 3.1
#: A peak may take this part of the limit: the allocator's cache and the batches to come need the rest.
FULL_RATIO = 0.90
#: Bytes of AdamW state a trained parameter: two fp32 moments, and an fp32 master weight in mixed precision (ZeRO, arXiv
#: 1910.02054, section 3.1).
STATE_BYTES = 12.0

#: Findings after which "memory is free" is either said already, or not to be relied on.
SPOKEN_FOR = frozenset(
    {
        "batch_arithmetic",
        "needless_recompute",
        "needless_offload",
        "memory_leak",
        "memory_fragmentation",
        "memory_pressure",
        "memory_over_budget",
        "foreign_memory",
        "eval_accumulation",
        "resume_excess",
        "oom_predicted",
        "oom_forecast",
        "oom_next_phase",
        "oom",
    }
)

_STEPS = Threshold(
    name="steps",
    default=200.0,
    unit="steps",
    reason="two windows of 100 steps: the longest batches of a shuffled set have come by",
)
_LEVELS = {"peak_bytes": "needed at the worst moment so far", "limit_bytes": "may be held", "used_ratio": "peak over limit"}


class UnderusedMemory(BaseDetector):
    """Much of the card's memory has never been needed."""

    record = CodeRecord(
        code="underused_memory",
        family="efficiency",
        severity=Severity.INFO,
        title="Much of the GPU's memory is never needed",
        condition="The peak of the fullest GPU is below 60 % of what may be held, after 200 steps.",
        silent="Where peaks or limits are unknown; in the first 200 steps; before an announced evaluation; while memory grows "
        "or presses; when accumulation, recomputation or offload could use the memory (their findings say so); with memory "
        "shared with the host.",
        evidence={**_LEVELS, "fits_on": "cheaper cards that would hold the peak with 10 % to spare, cheapest first"},
        thresholds=(
            Threshold(
                name="used_ratio",
                default=0.60,
                unit="ratio",
                reason="activations grow with the batch: below 60 % the next larger batch still fits",
            ),
            _STEPS,
        ),
        levers=("L08", "L39"),
        route=Route.WEEKLY,
        runbook="Raise the micro-batch and lower accumulation (same effective batch), or rent a smaller card: the finding names "
        "those that would hold the peak. A smaller card is slower; compare the cost of a step.",
    )
    every_s = 30.0
    hold_s = 30.0  # the findings that would use the memory come first
    clear_s = 60.0

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        if not settled(timeline, view.limit(self.record, "steps")):
            return
        if SPOKEN_FOR & view.raised or _evaluation_to_come(timeline):
            return
        found = fullest(timeline)
        if found is None or found[1] >= view.limit(self.record, "used_ratio") * found[2]:
            return
        device, need, limit = found
        half = full_precision(timeline) is not True
        here = capability(device) or (card.capability if (card := card_of(device.info.name)) is not None else None)
        # A run in bf16 (card of 8.0 or newer) is not sent to a card without it.
        minimum = 8.0 if half and (here is None or here >= 8.0) else 0.0
        fits = (
            [card.name for card in smaller_cards(need, device.info.name, minimum_capability=minimum)]
            if not device.info.mig
            else []
        )
        more = f"; it would fit on {' or '.join(fits[:2])}" if fits else ""
        yield Signal(
            "underused_memory",
            gpu=device.index,
            summary=f"peak {need / GIB:.1f} of {limit / GIB:.1f} GiB ({percent(need / limit)}){more}",
            evidence={"peak_bytes": need, "limit_bytes": limit, "used_ratio": round(need / limit, 3), "fits_on": fits},
        )


class NeedlessRecompute(BaseDetector):
    """Activations are recomputed although they would fit."""

    record = CodeRecord(
        code="needless_recompute",
        family="efficiency",
        severity=Severity.INFO,
        title="Activations are recomputed although they would fit",
        condition="Activation checkpointing is on and the peak without it (at rest + 3.1 x the activations kept now) stays "
        "below 90 % of what may be held, after 200 steps.",
        silent="Where settings, peaks or limits are unknown; where the estimate does not fit.",
        evidence={**_LEVELS, "without_bytes": "estimated peak without recomputation"},
        thresholds=(_STEPS,),
        levers=("L11",),
        route=Route.WEEKLY,
        runbook="Turn activation checkpointing off, or recompute only every n-th layer; watch the peak of the first steps.",
    )
    every_s = 30.0
    clear_s = 60.0

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        if timeline.header.settings is None or not settled(timeline, view.limit(self.record, "steps")):
            return
        if recomputes(timeline) is not True:
            return
        found = fullest(timeline)
        if found is None:
            return
        device, need, limit = found
        rest = rest_bytes(device)
        if rest is None or need < rest:
            return
        without = rest + KEPT_BY_RECOMPUTE * (need - rest)
        if without < FULL_RATIO * limit:
            yield Signal(
                "needless_recompute",
                gpu=device.index,
                summary=f"peak {need / GIB:.1f} GiB with recomputation, about {without / GIB:.1f} of {limit / GIB:.1f} GiB "
                "without it",
                evidence={
                    "peak_bytes": need,
                    "limit_bytes": limit,
                    "used_ratio": round(need / limit, 3),
                    "without_bytes": round(without),
                },
            )


class NeedlessOffload(BaseDetector):
    """States are kept in host memory although they would fit on the GPU."""

    record = CodeRecord(
        code="needless_offload",
        family="efficiency",
        severity=Severity.INFO,
        title="States are offloaded although they would fit",
        condition="Offload is on and peak + offloaded bytes stay below 90 % of what may be held, after 200 steps.",
        silent="Where settings, sizes, peaks or limits are unknown; where the sum does not fit.",
        evidence={**_LEVELS, "offloaded": "what is offloaded", "offloaded_bytes": "its size on this GPU"},
        thresholds=(_STEPS,),
        levers=("L23",),
        route=Route.WEEKLY,
        runbook="Turn the offload off; watch the peak of the first steps. The optimizer then runs on the GPU.",
    )
    every_s = 30.0
    clear_s = 60.0

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        if timeline.header.settings is None or not settled(timeline, view.limit(self.record, "steps")):
            return
        what = offloads(timeline)
        found = fullest(timeline) if what is not None else None
        size = _offloaded_bytes(timeline, what) if what is not None else None
        if found is None or size is None:
            return
        device, need, limit = found
        if need + size < FULL_RATIO * limit:
            yield Signal(
                "needless_offload",
                gpu=device.index,
                summary=f"{what} of {size / GIB:.1f} GiB in host memory would fit: peak {need / GIB:.1f} of {limit / GIB:.1f} "
                "GiB",
                evidence={
                    "peak_bytes": need,
                    "limit_bytes": limit,
                    "used_ratio": round(need / limit, 3),
                    "offloaded": what,
                    "offloaded_bytes": round(size),
                },
            )


def _evaluation_to_come(timeline: Timeline) -> bool:
    """Whether the settings announce evaluations and none has been seen: its peak may be the higher one."""
    word = settings_of(timeline).get("eval_strategy")
    return truth(word) is True and not timeline.run.phase_counts.get("eval")


def _offloaded_bytes(timeline: Timeline, what: str | None) -> float | None:
    """Bytes one GPU would hold more; states and weights are sharded over the ranks, as every offloading strategy does."""
    if what == "activations":
        return None
    model = timeline.model
    states = timeline.budget_value("optimizer_state_bytes")
    if states is None and model is not None and model.trainable_parameters is not None:
        states = STATE_BYTES * model.trainable_parameters / timeline.world_size
    if what == "optimizer":
        return states
    if states is None or model is None or model.parameters is None:
        return None
    return states + 2.0 * model.parameters / timeline.world_size
