"""Kernels for which a faster one exists: eager attention, an unfused optimizer, logits written out whole."""

from __future__ import annotations

from collections.abc import Iterable

from trainbudget.engine.cards import GIB
from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.detect.efficiency.evidence import fullest, settled
from trainbudget.engine.detect.efficiency.settings_words import accumulation, settings_of, truth
from trainbudget.engine.timeline import Timeline
from trainbudget.engine.tracks.series import median
from trainbudget.findings import CodeRecord, Route, Severity, Threshold
from trainbudget.quantities import percent

RECORD = CodeRecord(
    code="slow_kernel_path",
    family="efficiency",
    severity=Severity.INFO,
    title="A faster kernel exists for this",
    condition="attention: eager attention at 512 tokens or more. optimizer: 10 % or more of the step in an optimizer that is not "
    "fused. logits: the logits of a micro-batch in fp32 take 15 % or more of the GPU's memory and no fused loss is on.",
    silent="Where attention, optimizer, vocabulary or lengths are unknown; when the optimizer is offloaded; in warm-up.",
    evidence={
        "attention": "implementation in use (cause attention)",
        "sequence_tokens": "median longest sequence of a batch (attention)",
        "optimizer": "in use (optimizer)",
        "optimizer_ratio": "share of the step (optimizer)",
        "logits_bytes": "tokens of a micro-batch x vocabulary x 4 bytes (logits)",
        "limit_bytes": "may be held (logits)",
    },
    thresholds=(
        Threshold(
            name="sequence_tokens",
            default=512.0,
            unit="tokens",
            reason="eager attention writes tokens squared: at 512 it held 27 % more memory than SDPA (measured, 299 to 235 MiB)",
        ),
        Threshold(
            name="optimizer_ratio",
            default=0.10,
            unit="ratio",
            reason="a fused AdamW reads and writes each state once: 1-3 % of a step; at 10 % a fused one gains more than noise",
        ),
        Threshold(
            name="logits_ratio",
            default=0.15,
            unit="ratio",
            reason="logits exist twice in the loss (values and gradient): 15 % is 30 % of the memory at that moment",
        ),
        Threshold(name="steps", default=50.0, unit="steps", reason="phase times settle with the allocator's cache"),
    ),
    causes=("attention", "optimizer", "logits"),
    levers=("L16", "L18", "L17"),
    route=Route.WEEKLY,
    runbook="Change one thing and compare a few hundred steps: seconds a step and the peak.",
)


class EagerAttention(BaseDetector):
    """Attention that writes out its whole score matrix."""

    record = RECORD
    every_s = 30.0

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        model = timeline.model
        if model is None or model.attention is None or model.attention.lower() != "eager":
            return
        if not settled(timeline, view.limit(RECORD, "steps")):
            return
        lengths = [r.event.max_sequence_tokens for r in timeline.steps.window() if r.event.max_sequence_tokens is not None]
        typical = median(lengths)
        if typical is None or typical < view.limit(RECORD, "sequence_tokens"):
            return
        yield Signal(
            "slow_kernel_path",
            cause="attention",
            summary=f"eager attention at {typical:.0f} tokens: it writes the whole score matrix to memory",
            evidence={"attention": model.attention, "sequence_tokens": typical},
        )


class SlowOptimizer(BaseDetector):
    """An optimizer that launches one kernel after another."""

    record = RECORD
    every_s = 30.0
    hold_s = 30.0

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        last = timeline.last_step
        if last is None or last.event.optimizer_s is None or "optimizer_offload" in view.raised:
            return
        name = _unfused(timeline)
        if name is None or not settled(timeline, view.limit(RECORD, "steps")):
            return
        records = [r for r in timeline.steps.window() if r.event.optimizer_s is not None]
        whole = sum(r.duration_s * r.count for r in records)
        if not timeline.steps.enough(records) or whole <= 0.0:
            return
        ratio = sum(r.event.optimizer_s or 0.0 for r in records) / whole
        busy = [r.event.gpu_busy_s for r in records]
        if any(b is not None for b in busy) and sum(b or 0.0 for b in busy) < (1.0 - 0.5 * ratio) * whole:
            return  # the GPU waits while the optimizer runs: it runs elsewhere, or the host is the limit
        if ratio >= view.limit(RECORD, "optimizer_ratio"):
            yield Signal(
                "slow_kernel_path",
                cause="optimizer",
                summary=f"the optimizer takes {percent(ratio)} of each step and is not a fused one ({name})",
                evidence={"optimizer": name, "optimizer_ratio": round(ratio, 3)},
            )


class LargeLogits(BaseDetector):
    """A loss that writes out logits of tokens x vocabulary."""

    record = RECORD
    every_s = 30.0

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        model = timeline.model
        if model is None or not model.vocab_size or truth(settings_of(timeline).get("use_liger_kernel")):
            return
        if not settled(timeline, view.limit(RECORD, "steps")):
            return
        found = fullest(timeline)
        tokens = median([r.event.tokens / r.count for r in timeline.steps.window() if r.event.tokens is not None])
        if found is None or tokens is None:
            return
        micro = accumulation(timeline) or (timeline.last_step.event.micro_steps if timeline.last_step is not None else None) or 1
        size = tokens / micro * model.vocab_size * 4.0
        if size >= view.limit(RECORD, "logits_ratio") * found[2]:
            yield Signal(
                "slow_kernel_path",
                cause="logits",
                summary=f"the logits of a micro-batch take {size / GIB:.1f} GiB; a fused loss never writes them out",
                evidence={"logits_bytes": round(size), "limit_bytes": found[2]},
            )


def _unfused(timeline: Timeline) -> str | None:
    """The optimizer's name where it is known not to be fused."""
    name = settings_of(timeline).get("optim")
    if name is None and timeline.model is not None:
        name = timeline.model.optimizer
    if name is None or "fused" in str(name).lower():
        return None
    # A bare class name ("AdamW") does not say whether fused=True was given.
    return str(name) if "optim" in settings_of(timeline) or "foreach" in str(name).lower() else None
