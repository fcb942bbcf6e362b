"""Puts a plan together: memory, step time, run time and money of one configuration on one card, what fits and what to change."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from trainbudget.errors import ConfigError
from trainbudget.plan import prices
from trainbudget.plan.analytic import predict_analytic
from trainbudget.plan.answer import Plan, RunCost
from trainbudget.plan.changes import Change, changes_that_fit
from trainbudget.plan.hardware import GpuSpec
from trainbudget.plan.instance import Instance
from trainbudget.plan.memory import (
    EvalSpec,
    MemoryPrediction,
    TargetGpu,
    Trace,
    max_micro_batch,
    max_sequence_length,
    predict_memory,
    spec_of,
)
from trainbudget.plan.memory_search import floor_bytes
from trainbudget.plan.peaks import peaks_by_tokens
from trainbudget.plan.request import Charges, PlanRequest
from trainbudget.plan.script.protocol import Facts
from trainbudget.plan.step_time import Estimate, StepTime, estimate_step_time
from trainbudget.plan.tracer import Tracer
from trainbudget.plan.tracing.failure import TraceFailed
from trainbudget.plan.train_spec import TrainSpec

#: A checkpoint is written at about this rate, bytes/s (one cloud disk); it only enters the run time of plans that save.
SAVE_BYTES_PER_S = 1e9

#: Settings that change what is kept for the backward pass, and nothing of parameters, gradients and optimizer state.
_LESS_TO_KEEP = {"micro_batch", "gradient_accumulation", "activation_checkpointing"}


@dataclass(slots=True, kw_only=True)
class Planner:
    """Plans requests from one tracer. `say` hears what takes time; `machine` is where this process runs, for its price."""

    tracer: Tracer
    today: datetime.date | None = None
    machine: Instance = field(default_factory=Instance)
    search: bool = True
    shapes: bool = True  # trace shorter batches too, where the data set's lengths are known
    say: Callable[[str], None] = lambda text: None

    def plan(self, request: PlanRequest) -> Plan:
        """The plan for a request.

        Raises:
            ConfigError: the model cannot be read, or cannot be traced and has no analytic answer.
        """
        target = target_of(request)
        price, hint = price_of(request, self.machine, self.today)
        self.say(f"tracing one step for {request.gpu.name}")
        try:
            trace = self.tracer.trace(request.spec, target)
        except TraceFailed as error:
            if not isinstance(request.model, Mapping) and self.tracer.facts.model_config:
                request = replace(request, model=self.tracer.facts.model_config)
            reason = f"the step cannot be traced: {error}"
            return plan_by_formulas(request, reason, facts=self.tracer.facts, machine=self.machine, today=self.today)
        memory = predict_memory(trace, target)
        step = self._step(request, trace, target)
        largest, longest, changes = self._search(request, target, trace, memory)
        facts = self.tracer.facts
        return Plan(
            request=request,
            title=request.title or facts.title,
            memory=memory,
            limit_bytes=request.limit_bytes,
            step=step,
            run=run_cost(request, trace, step, price, self.today),
            price=price,
            price_hint=hint,
            max_micro_batch=largest,
            max_sequence_length=longest,
            changes=changes,
            searched=self.search,
            not_understood=tuple(dict.fromkeys([*memory.not_understood, *facts.notes, *step.notes, *_card_notes(request.gpu)])),
            facts=facts,
            peaks=peaks_by_tokens(self.tracer, request.spec, target, memory) if self.shapes else (),
            parameters=trace.parameter_elements,
            trainable_parameters=trace.trainable_elements,
        )

    def _step(self, request: PlanRequest, trace: Trace, target: TargetGpu) -> StepTime:
        """Step time of the average batch: the longest one's, scaled by tokens."""
        step = estimate_step_time(trace, request.gpu, request.spec, measured_s=request.duration.measured_step_time_s)
        ratio = self.tracer.facts.token_ratio
        if ratio >= 1.0 or request.duration.measured_step_time_s is not None:
            return step
        scaled = step.step.times(ratio)
        # What does not grow with tokens (optimizer, reading weights, launching) makes a short batch slower than its share.
        scaled = Estimate(value=scaled.value, low=scaled.low, high=step.step.high, source=scaled.source + ", average batch")
        return replace(step, step=scaled)

    def _evaluate(
        self, request: PlanRequest, target: TargetGpu, spec: TrainSpec, *, hopeless: bool
    ) -> tuple[MemoryPrediction, StepTime]:
        if hopeless and _changed(request.spec, spec) <= _LESS_TO_KEEP:
            raise TraceFailed("parameters, gradients and optimizer state alone do not fit")
        self.say(f"looking for changes that make it fit: {_difference(request.spec, spec)}")
        trace = self.tracer.trace(spec, target)
        return predict_memory(trace, target), estimate_step_time(trace, request.gpu, spec)

    def _search(
        self, request: PlanRequest, target: TargetGpu, trace: Trace, memory: MemoryPrediction
    ) -> tuple[int | None, int | None, tuple[Change, ...]]:
        if not self.search:
            return None, None, ()
        spec = request.spec

        def traced(wanted: TrainSpec) -> Trace:
            self.say(f"trying batch {wanted.micro_batch}, length {wanted.sequence_length}")
            return self.tracer.trace(wanted, target)

        # Where parameters, gradients and optimizer state alone are too much, no batch and no length is small enough.
        hopeless = floor_bytes(trace) > target.usable_bytes
        largest = 0 if hopeless else _or_none(lambda: max_micro_batch(traced, spec, target, known=trace))
        sequence = spec.task != "image_classification" and spec.sequence_length > 1
        longest = None
        if sequence:
            longest = 0 if hopeless else _or_none(lambda: self._longest(traced, spec, target, trace))
        if memory.fits:
            return largest, longest, ()
        changes = changes_that_fit(
            spec,
            request.gpu,
            lambda wanted: self._evaluate(request, target, wanted, hopeless=hopeless),
            vocabulary=request.vocabulary,
            settings=frozenset(self.tracer.facts.settings),
        )
        return largest, longest, tuple(changes)

    def _longest(self, traced: Callable[[TrainSpec], Trace], spec: TrainSpec, target: TargetGpu, trace: Trace) -> int | None:
        """The longest sequence that fits, but no longer than the model knows positions."""
        positions = (self.tracer.facts.model_config or {}).get("max_position_embeddings")
        if isinstance(positions, int) and positions >= spec.sequence_length:
            at_most = spec.with_shape(sequence_length=positions)
            # A small model fits at any length it has positions for: one trace instead of a search.
            if predict_memory(traced(at_most), target).device.value <= target.usable_bytes:
                return positions
        found = max_sequence_length(traced, spec, target, known=trace)
        return found if found is None or not isinstance(positions, int) else min(found, positions)


def plan_by_formulas(
    request: PlanRequest, reason: str, *, facts: Facts | None = None, machine: Instance, today: datetime.date | None
) -> Plan:
    """What formulas say, with their wide interval, where the step cannot be traced; no step time.

    Raises:
        ConfigError: the formulas lack the model's sizes; the text is `reason`.
    """
    target = target_of(request)
    price, hint = price_of(request, machine, today)
    config = request.model if isinstance(request.model, Mapping) else None
    try:
        memory = predict_analytic(config, request.spec, target, reason=reason)
    except ConfigError:
        raise ConfigError(reason) from None
    return Plan(
        request=request,
        title=request.title or (facts.title if facts is not None else ""),
        memory=memory,
        limit_bytes=request.limit_bytes,
        step=None,
        run=None,
        price=price,
        price_hint=hint,
        max_micro_batch=None,
        max_sequence_length=None,
        changes=(),
        not_understood=tuple(memory.not_understood),
        facts=facts,
    )


def _changed(old: TrainSpec, new: TrainSpec) -> set[str]:
    """The settings in which two configurations differ."""
    return {f.name for f in msgspec.structs.fields(TrainSpec) if getattr(old, f.name) != getattr(new, f.name)}


def _difference(old: TrainSpec, new: TrainSpec) -> str:
    return ", ".join(n if n == "peft" else f"{n} {getattr(new, n)}" for n in sorted(_changed(old, new)))


def _or_none(search: Callable[[], int | None]) -> int | None:
    """A search that a failing trace ends without an answer."""
    try:
        return search()
    except TraceFailed:
        return None


def _card_notes(gpu: GpuSpec) -> list[str]:
    """Values of the table this plan rests on that no primary source confirmed."""
    used = [n for n in ("memory_gib", "peak_tflops", "bandwidth_gbs") if n in gpu.unverified]
    words = {"memory_gib": "usable memory", "peak_tflops": "peak FLOP/s", "bandwidth_gbs": "bandwidth"}
    return [f"{gpu.name}: {' and '.join(words[n] for n in used)} not verified"] if used else []


def target_of(request: PlanRequest) -> TargetGpu:
    """The card as the memory prediction knows it."""
    gpu = request.gpu
    if request.limit_bytes is None or gpu.compute_capability is None:
        why = "it has no CUDA compute capability" if gpu.compute_capability is None else "its memory is unknown"
        raise ConfigError(f"{gpu.name} cannot be planned for: {why}")
    total = gpu.nvml_total_bytes or request.limit_bytes
    return TargetGpu(
        name=gpu.nvml_names[0],
        memory_bytes=int(max(total, request.limit_bytes)),
        limit_bytes=int(request.limit_bytes),
        compute_capability=gpu.compute_capability,
    )


def price_of(request: PlanRequest, machine: Instance, today: datetime.date | None) -> tuple[prices.Quote | None, str | None]:
    """The price of a GPU-hour, and a hint where a named instance is known without a date.

    The machine's own instance counts only when it has this card: planning for another one asks the market.
    """
    charges = request.charges
    if charges == Charges() and machine.provider is not None:
        own = prices.resolve(
            request.gpu, provider=machine.provider, instance=machine.instance, region=machine.region, today=today
        )
        if own is not None and not own.assumed:
            return own, None
    quote = prices.resolve(
        request.gpu,
        given=charges.given,
        file=charges.file,
        provider=charges.provider,
        instance=charges.instance,
        region=charges.region,
        spot=charges.spot,
        today=today,
    )
    return quote, prices.undated_hint(request.gpu, charges.provider, charges.instance)


def run_cost(
    request: PlanRequest, trace: Trace, step: StepTime, price: prices.Quote | None, today: datetime.date | None = None
) -> RunCost | None:
    """Time and money of the whole run; None when it was not said how long it is."""
    duration, spec = request.duration, request.spec
    steps = steps_of(request)
    if steps is None:
        return None
    micro_forward_s = step.forward_s / spec.gradient_accumulation
    batches = spec.evaluation.batches if spec.evaluation is not None else 0
    eval_s = steps // duration.eval_steps * batches * micro_forward_s if duration.eval_steps else 0.0
    # Weights, and optimizer state of the trained part: two fp32 moments as AdamW keeps them.
    saved = sum(p.elements * (p.item_bytes + (8 if p.trainable else 0)) for p in trace.parameters)
    save_s = steps // duration.save_steps * saved / SAVE_BYTES_PER_S if duration.save_steps else 0.0
    extra = eval_s + save_s
    run = Estimate(
        value=steps * step.step.value + extra,
        low=steps * step.step.low + extra / 2,
        high=steps * step.step.high + extra * 2,
        source=step.step.source,
    )
    hours = run.times(request.count / 3600)
    cost = None
    if price is not None:
        cost = Estimate(
            value=hours.value * price.per_gpu_hour, low=hours.low * price.low, high=hours.high * price.high, source=price.source
        )
    preprocess = None
    if duration.preprocess_cpu_hours is not None:
        cpu = prices.cpu_hour(request.charges.provider, today=today)
        hours_cpu = duration.preprocess_cpu_hours
        preprocess = Estimate(
            value=hours_cpu * cpu.per_gpu_hour,
            low=hours_cpu * cpu.low,
            high=hours_cpu * cpu.high,
            source=f"{cpu.source} {cpu.date}",
        )
    return RunCost(
        steps=steps, run=run, eval_s=eval_s, save_s=save_s, gpu_hours=hours.value, cost=cost, preprocess_cost=preprocess
    )


def steps_of(request: PlanRequest) -> int | None:
    """Optimizer steps of the run, from whichever length was given."""
    duration, spec = request.duration, request.spec
    per_step = spec.micro_batch * spec.gradient_accumulation * spec.world_size
    if duration.steps is not None:
        return duration.steps
    if duration.tokens is not None:
        return max(1, round(duration.tokens / (per_step * spec.sequence_length)))
    if duration.epochs is not None and duration.samples is not None:
        return max(1, round(duration.epochs * duration.samples / per_step))
    return None


def on_card(request: PlanRequest, gpu: GpuSpec) -> PlanRequest:
    """The same request on another card, at market price."""
    return replace(request, gpu=gpu, memory_gib=None, charges=replace(request.charges, given=None, instance=None))


def request_of_script(facts: Facts, base: PlanRequest, *, strategy: str | None = None) -> PlanRequest:
    """What a caught script trains, on the card and at the price of `base`; `strategy` replaces the script's own."""
    spec = spec_of({k: v for k, v in facts.spec.items() if v is not None})
    if strategy is not None:
        spec = msgspec.structs.replace(spec, strategy=strategy)
    if facts.eval_batches is not None:
        spec = msgspec.structs.replace(spec, evaluation=EvalSpec(batches=facts.eval_batches))
    duration = replace(
        base.duration,
        steps=base.duration.steps or facts.steps,
        eval_steps=base.duration.eval_steps or facts.eval_steps,
        save_steps=base.duration.save_steps or facts.save_steps,
    )
    count = max(base.count, spec.world_size)
    return replace(
        base,
        spec=spec,
        duration=duration,
        count=count,
        title=facts.title,
        vocabulary=facts.framework,
        model=facts.model_config or {},
    )
