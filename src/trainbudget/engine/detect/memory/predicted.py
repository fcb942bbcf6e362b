"""What will not fit before it is tried: the first step, and phases that have not come yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.detect.memory.ahead import length_signal
from trainbudget.engine.detect.memory.lengths import length_forecast
from trainbudget.engine.detect.memory.standing import STANDING_EVIDENCE, Standing, gib, limit_of, standing
from trainbudget.engine.timeline import Timeline
from trainbudget.engine.tracks.device import DeviceTrack
from trainbudget.engine.tracks.memory import MemoryTrack
from trainbudget.events import Bound
from trainbudget.findings import CodeRecord, Route, Severity, Threshold

#: Names under which a plan gives the peak of training itself.
_TRAINING = ("train", "training", "step", "forward", "backward", "optimizer")

_SLACK = Threshold(
    name="slack_ratio",
    default=0.05,
    unit="ratio",
    reason="a number without an interval is taken as right to 5 %: the median error of traced predictions is 1.5 %",
)
_EVIDENCE = {
    **STANDING_EVIDENCE,
    "needed_bytes": "what is needed",
    "needed_low_bytes": "low end of its 90 % interval",
    "source": "plan, budget, optimizer_state, gather or lengths",
}


class OomPredicted(BaseDetector):
    """The run cannot fit, and has not found out yet."""

    record = CodeRecord(
        code="oom_predicted",
        family="memory",
        severity=Severity.WARNING,
        title="The run will not fit",
        condition="Before the first optimizer step has completed: the planned peak, or what the first micro-batches took plus "
        "the optimizer's state, exceeds what may be held. Critical when the low end of the interval does.",
        silent="After the first step (then the peak is known); without a limit; without a plan, a budget or known states.",
        evidence={**_EVIDENCE, "state_bytes": "optimizer state still to come"},
        thresholds=(_SLACK,),
        levers=("L09", "L10", "L19", "L37", "L22", "L21", "L23"),
        route=Route.PAGE,
        runbook="Stop it instead of waiting for the error: `trainbudget plan` says which change fits.",
    )

    def check(self, view: View) -> Iterable[Signal]:
        run = view.timeline.run
        if run.end is not None or (run.session is not None and (run.session.steps > 0 or not run.training)):
            return
        for device in view.timeline.owned:
            signal = next(self._signals(device, view), None)
            if signal is not None:
                yield signal

    def _signals(self, device: DeviceTrack, view: View) -> Iterator[Signal]:
        timeline = view.timeline
        limit, _ = limit_of(device, timeline)
        if limit is None:
            return
        slack = view.limit(self.record, "slack_ratio")
        peak = timeline.budget.get("memory_peak_bytes")
        if peak is not None and peak.value > limit:
            yield self._signal(device, timeline, peak, slack=slack, source="budget", what="the planned peak")
        for name, value in ((timeline.plan.phase_peaks or {}) if timeline.plan is not None else {}).items():
            if name in _TRAINING and value > limit:
                what = f"the planned peak of {name}"
                yield self._signal(device, timeline, Bound(value=value), slack=slack, source="plan", what=what)
        state = optimizer_state_bytes(timeline)
        track = device.memory
        if state and track.early_peak is not None and timeline.run.training and not _states_there(track, state):
            # The next step's peak: gradients and activations come back on top of the states.
            needed = Bound(value=track.early_peak + state)
            now = standing(device, timeline)
            if now.capacity is not None and needed.value * (1.0 - slack) > now.capacity:
                yield self._signal(
                    device,
                    timeline,
                    needed,
                    slack=slack,
                    source="optimizer_state",
                    what="with the optimizer's state it",
                    state=state,
                )
        lengths = length_forecast(device, timeline)
        if lengths is not None:
            now = standing(device, timeline)
            if now.capacity is not None and lengths.value > now.capacity:
                yield length_signal("oom_predicted", device, lengths, now, timeline)

    @staticmethod
    def _signal(
        device: DeviceTrack,
        timeline: Timeline,
        needed: Bound,
        *,
        slack: float,
        source: str,
        what: str,
        state: float | None = None,
    ) -> Signal:
        now = standing(device, timeline)
        low = needed.low if needed.low is not None else needed.value * (1.0 - slack)
        sure = now.limit is not None and low > now.limit
        return Signal(
            "oom_predicted",
            gpu=device.index,
            severity=Severity.CRITICAL if sure else Severity.WARNING,
            summary=f"{what} needs {gib(needed.value)}, {gib(now.limit)} may be held",
            evidence={
                **now.evidence(),
                "needed_bytes": round(needed.value),
                "needed_low_bytes": round(low),
                "source": needed.source or source,
                "state_bytes": state,
            },
        )


class OomNextPhase(BaseDetector):
    """A phase that has not come yet will not fit beside what is held now."""

    record = CodeRecord(
        code="oom_next_phase",
        family="memory",
        severity=Severity.WARNING,
        title="The next evaluation, save or resume will not fit",
        condition="Training fits, but the known size of a phase that has not completed yet (gathering a checkpoint, evaluating) "
        "exceeds what is left. Critical when the low end of its interval does.",
        silent="Once the phase has completed; before training has settled; where its size is not known.",
        evidence={**_EVIDENCE, "phase": "which phase"},
        thresholds=(_SLACK,),
        levers=("L31", "L30", "L22", "L23", "L09"),
        route=Route.PAGE,
        runbook="save: gather on the CPU before the first save (FullStateDictConfig(offload_to_cpu=True)), or save sharded. "
        "eval: use a smaller evaluation batch or eval_accumulation_steps before the first one. resume: load it with "
        "map_location='cpu'.",
    )
    every_s = 15.0

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        gather = timeline.budget.get("checkpoint_gather_bytes")
        peaks = timeline.plan.phase_peaks if timeline.plan is not None else None
        if (gather is None and not peaks) or not timeline.run.training or not timeline.run.started:
            return
        for device in timeline.owned:
            signal = next(self._signals(device, view, gather, peaks or {}), None)
            if signal is not None:
                yield signal

    def _signals(self, device: DeviceTrack, view: View, gather: Bound | None, peaks: dict[str, float]) -> Iterator[Signal]:
        timeline, track = view.timeline, device.memory
        slack = view.limit(self.record, "slack_ratio")
        seen = timeline.run.phase_counts
        if gather is not None and "save" not in seen and track.rest.total:
            now = standing(device, timeline)
            if now.capacity is not None and now.at_rest is not None:
                low = gather.low if gather.low is not None else gather.value * (1.0 - slack)
                if now.at_rest + gather.value > now.capacity:
                    needed = now.at_rest + gather.value
                    yield self._signal(device, now, "save", needed=needed, low=now.at_rest + low, source="gather")
        for phase, value in peaks.items():
            if phase in _TRAINING or phase in seen:
                continue
            now = standing(device, timeline)
            if now.capacity is not None and value > now.capacity:
                yield self._signal(device, now, phase, needed=value, low=value * (1.0 - slack), source="plan")

    @staticmethod
    def _signal(device: DeviceTrack, now: Standing, phase: str, *, needed: float, low: float, source: str) -> Signal:
        return Signal(
            "oom_next_phase",
            gpu=device.index,
            phase=phase,
            severity=Severity.CRITICAL if now.capacity is not None and low > now.capacity else Severity.WARNING,
            summary=f"the coming {phase} will need {gib(needed)}, {gib(now.capacity)} can be had",
            evidence={
                **now.evidence(),
                "needed_bytes": round(needed),
                "needed_low_bytes": round(low),
                "source": source,
                "phase": phase,
            },
        )


def _states_there(track: MemoryTrack, state: float) -> bool:
    """Whether the states have come already (the first step is in its optimizer phase): then the peak contains them."""
    level = track.early_level
    return level is not None and track.early[-1] - level >= 0.5 * state


#: Bytes of state a parameter gets from Adam: two values in the parameter's own type (torch.optim.Adam).
_ADAM_VALUES = 2.0
_TYPE_BYTES = {"float32": 4.0, "fp32": 4.0, "float16": 2.0, "fp16": 2.0, "bfloat16": 2.0, "bf16": 2.0}


def optimizer_state_bytes(timeline: Timeline) -> float | None:
    """The optimizer's state on this device: as budgeted, else by arithmetic for plain Adam in one process, else unknown."""
    known = timeline.budget_value("optimizer_state_bytes")
    if known is not None:
        return known
    model = timeline.model
    if model is None or timeline.world_size > 1 or len(timeline.owned) != 1:
        return None  # sharded or split: unknown
    name = (model.optimizer or "").lower()
    if "adam" not in name or any(
        word in name for word in ("8bit", "4bit", "paged", "galore", "apollo", "offload", "cpu", "mini")
    ):
        return None
    width = _TYPE_BYTES.get((model.parameter_dtype or "").removeprefix("torch."))
    if width is None or model.trainable_parameters is None:
        return None
    return _ADAM_VALUES * width * model.trainable_parameters
