"""Run a user's own training step on the simulated device, as its loop would, and record it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map

from trainbudget.plan.simulated_device.backend import NAME, PORTABLE, SimulatedMode, install
from trainbudget.plan.simulated_device.cuda import CudaAlias, Patches, user_sees_cuda
from trainbudget.plan.simulated_device.kernels import AttentionTarget
from trainbudget.plan.tracing.failure import TraceFailed, reason_of
from trainbudget.plan.tracing.recorder import Recorder
from trainbudget.plan.tracing.trace import Category, Kind, Parameter, Phase, Trace
from trainbudget.plan.tracing.units import attach_units, train_whole_units, units_for
from trainbudget.plan.train_spec import TargetGpu, TrainSpec

UNSHARDED = ("none", "ddp")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSettings:
    """How the loop runs the step.

    Attributes:
        spec: accumulation, clipping, loop, zero_grad, strategy; the rest only describes.
        autocast: dtype the loop enters autocast with; None = the step does so itself, or not at all.
        vocabulary: width of the logits.
    """

    spec: TrainSpec
    autocast: str | None = None
    steps: int = 2
    vocabulary: int | None = None


def trace_step(
    *,
    model: Any,
    batches: Sequence[Any],
    training_step: Callable[[Any, Any], Any],
    optimizer_factory: Callable[[Sequence[Any]], Any] | None,
    target: TargetGpu,
    settings: StepSettings,
    evaluation_step: Callable[[Any, Any], Any] | None = None,
) -> Trace:
    """The recorded step; see ``trainbudget.plan.memory.trace_step``.

    Raises:
        TraceFailed: with the reason in one line.
    """
    started = time.monotonic()
    recorder = Recorder(settings.vocabulary, all_answer=settings.spec.pad)
    loop = _Loop(recorder, settings, training_step)
    try:
        with simulated(recorder, target):
            with torch.device(NAME):
                built = model() if callable(model) and not isinstance(model, torch.nn.Module) else to_simulated(model)
            loop.prepare(built)
            loop.run(built, batches, optimizer_factory)
            logits_bytes = loop.evaluate(built, batches, evaluation_step) if evaluation_step is not None else 0
            result = loop.trace(logits_bytes)
            loop.release(built)
    except TraceFailed:
        raise
    except Exception as exc:  # whatever the user's model or torch raises becomes one line
        raise TraceFailed(reason_of(exc)) from exc
    return _with_seconds(result, time.monotonic() - started)


@contextlib.contextmanager
def simulated(recorder: Recorder, target: TargetGpu) -> Iterator[None]:
    """Everything inside runs on the simulated card and is seen by ``recorder``."""
    install()
    AttentionTarget.capability = target.capability
    with (
        user_sees_cuda(target, lambda: recorder.mark(Kind.EMPTY_CACHE)),
        _backward_seen(recorder),
        torch.autograd.set_multithreading_enabled(False),  # an error inside backward then reaches the caller
        SimulatedMode(allow_non_fake_inputs=True),
        recorder,
        CudaAlias(),
    ):
        yield


@contextlib.contextmanager
def _backward_seen(recorder: Recorder) -> Iterator[None]:
    """The phase is backward inside ``torch.autograd.backward``, whoever calls it; reentrant checkpointing nests it."""
    inner = torch.autograd.backward
    depth = 0

    def backward(*args: Any, **kwargs: Any) -> Any:
        nonlocal depth
        if depth == 0:
            recorder.enter_phase(Phase.BACKWARD)
        depth += 1
        try:
            return inner(*args, **kwargs)
        finally:
            depth -= 1
            if depth == 0:
                recorder.mark(Kind.BACKWARD_END)
                recorder.enter_phase(Phase.FORWARD)

    run_engine = torch.autograd._engine_run_backward  # type: ignore[attr-defined]

    def run_engine_with_alias(*args: Any, **kwargs: Any) -> Any:
        with CudaAlias():  # torch takes function modes away inside backward; recomputation must see what the forward saw
            return run_engine(*args, **kwargs)

    patches = Patches()
    patches.put(torch.autograd, "backward", backward)
    patches.put(torch.autograd, "_engine_run_backward", run_engine_with_alias)
    patches.put(torch.amp.GradScaler, "_maybe_opt_step", lambda self, optimizer, state, *a, **k: optimizer.step(*a, **k))
    try:
        yield
    finally:
        patches.put_back()


def to_simulated(model: torch.nn.Module) -> torch.nn.Module:
    """The same module with every parameter and buffer replaced by a fake one on the device; ties and flags are kept."""
    moved: dict[int, torch.Tensor] = {}

    def on_device(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in moved:
            fresh = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=NAME)
            moved[id(tensor)] = fresh
        return moved[id(tensor)]

    for module in model.modules():
        for key, parameter in list(module._parameters.items()):
            if parameter is None or parameter.device.type == NAME:
                continue
            known = id(parameter) in moved
            value = on_device(parameter)
            if not known:
                value = torch.nn.Parameter(value, requires_grad=parameter.requires_grad)
                value.__dict__.update(getattr(parameter, "__dict__", {}))
                moved[id(parameter)] = value
            module._parameters[key] = value  # type: ignore[assignment]
        for key, buffer in list(module._buffers.items()):
            if buffer is not None and buffer.device.type != NAME:
                module._buffers[key] = on_device(buffer)
    return model


class _Loop:
    """The training loop around the user's step."""

    def __init__(self, recorder: Recorder, settings: StepSettings, training_step: Callable[[Any, Any], Any]) -> None:
        self._recorder = recorder
        self._settings = settings
        self._spec = settings.spec
        self._training_step = training_step
        self._parameters: list[Parameter] = []
        self._graded: set[int] = set()
        self._units: list[str] = ["model"]
        self._state: tuple[int, int | None] = (0, None)
        self._optimizer_name = ""
        self._hooks: list[Any] = []
        self._optimizer: Any = None
        self._held: Any = None

    @property
    def sharded(self) -> bool:
        """Whether the strategy owns parameters, gradients and optimizer state."""
        return self._spec.strategy not in UNSHARDED

    def prepare(self, model: torch.nn.Module) -> None:
        """Name what is alive after building: parameters, buffers; watch gradients arrive."""
        recorder = self._recorder
        modules = units_for(model, self._spec)
        unit_of = {
            id(p): i for i, (_, m) in enumerate(modules, 1) for p in m.parameters()
        }  # a unit inside a unit comes later and wins
        self._units = ["model", *(name for name, _ in modules)]
        index_of: dict[int, int] = {}
        for name, parameter in model.named_parameters():
            index_of[id(parameter)] = len(self._parameters)
            storage = recorder.track(parameter, Category.PARAMETERS)
            self._parameters.append(
                Parameter(
                    name=name,
                    shape=tuple(parameter.shape),
                    elements=parameter.numel(),
                    item_bytes=parameter.element_size(),
                    trainable=parameter.requires_grad,
                    storage=storage,
                    unit=unit_of.get(id(parameter), 0),
                )
            )
        if self.sharded:
            train_whole_units(model, self._parameters, self._spec)
        for buffer in model.buffers():
            if recorder.track(buffer) >= 0:
                recorder.track(buffer, Category.BUFFERS)
        for parameter in model.parameters():
            if parameter.requires_grad:
                index = index_of[id(parameter)]
                self._hooks.append(parameter.register_post_accumulate_grad_hook(lambda p, i=index: self._graded_now(p, i)))  # type: ignore[misc]
        if self.sharded:
            self._hooks.extend(attach_units(model, modules, recorder))
        recorder.forget_setup()

    def _graded_now(self, parameter: torch.nn.Parameter, index: int) -> None:
        gradient = parameter.grad
        if gradient is None:
            return
        self._graded.add(index)
        storage = self._recorder.track(gradient, Category.GRADIENTS)
        self._recorder.mark(Kind.GRADIENT, storage, index)

    def run(
        self, model: torch.nn.Module, batches: Sequence[Any], optimizer_factory: Callable[[Sequence[Any]], Any] | None
    ) -> None:
        """All optimizer steps; more than two micro-steps repeat the second and are not traced."""
        recorder, settings = self._recorder, self._settings
        trainable = [p for p in model.parameters() if p.requires_grad]
        optimizer = optimizer_factory(trainable) if optimizer_factory is not None and not self.sharded else None
        self._optimizer = optimizer  # its state stays on the device during an evaluation
        held = None
        upcoming = iter(batches)
        batch = None
        for step in range(settings.steps):
            for micro in range(self.micro_steps):
                if step == settings.steps - 1 and micro == self.micro_steps - 1:
                    recorder.forget_costs()
                recorder.mark(Kind.STEP, step, micro)
                recorder.enter_phase(Phase.FORWARD)
                batch = next(upcoming, batch)  # the last one is repeated
                loss = self._micro_step(model, batch)
                held = loss if self._spec.loop == "plain" else loss.detach() if isinstance(loss, torch.Tensor) else None
                del loss
            recorder.enter_phase(Phase.OPTIMIZER)
            if not self.sharded:
                self._optimizer_step(model, trainable, optimizer)
            else:
                for parameter in trainable:
                    parameter.grad = None
        self._held = held

    @property
    def micro_steps(self) -> int:
        """Micro-steps traced a step."""
        return 1 if self.sharded else min(self._spec.gradient_accumulation, 2)

    def _micro_step(self, model: torch.nn.Module, batch: Any) -> Any:
        recorder = self._recorder
        inputs = tree_map(self._on_device, batch)
        before = len(recorder.events)
        with self._autocast():
            loss = self._training_step(model, inputs)
        del inputs
        ran_backward = any(e[0] == Kind.BACKWARD_END for e in recorder.events[before:])
        if not ran_backward:
            loss = loss["loss"] if isinstance(loss, dict) else loss
            loss.backward()
        return loss

    def _on_device(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        fresh = torch.empty(value.shape, dtype=value.dtype, device=NAME)
        self._recorder.track(fresh, Category.INPUTS)
        return fresh

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self._settings.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast("cuda", dtype=getattr(torch, self._settings.autocast))

    def _optimizer_step(self, model: torch.nn.Module, trainable: list[Any], optimizer: Any) -> None:
        if self._spec.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(trainable, self._spec.max_grad_norm)
        if optimizer is not None:
            optimizer.step()
            self._tag_state(optimizer)
        for parameter in model.parameters():
            if self._spec.zero_grad == "none":
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()

    def _tag_state(self, optimizer: Any) -> None:
        self._optimizer_name = self._optimizer_name or type(optimizer).__name__
        for state in optimizer.state.values():
            for value in state.values() if isinstance(state, dict) else ():
                if isinstance(value, torch.Tensor):
                    self._recorder.track(value, Category.OPTIMIZER_STATE)

    def evaluate(self, model: torch.nn.Module, batches: Sequence[Any], evaluation_step: Callable[[Any, Any], Any]) -> int:
        """Record the forward of one evaluation batch; returns the bytes an evaluation loop would keep of it."""
        recorder = self._recorder
        recorder.enter_phase(Phase.EVALUATION)
        model.eval()
        with torch.no_grad(), self._autocast():
            kept = evaluation_step(model, tree_map(self._on_device, batches[-1]))
        model.train()
        size = kept.numel() * kept.element_size() if isinstance(kept, torch.Tensor) else 0
        del kept
        return size

    def trace(self, logits_bytes: int) -> Trace:
        """The finished trace."""
        recorder, settings = self._recorder, self._settings
        parameters = [
            Parameter(
                name=p.name,
                shape=p.shape,
                elements=p.elements,
                item_bytes=p.item_bytes,
                trainable=p.trainable,
                storage=p.storage,
                unit=p.unit,
                graded=i in self._graded,
            )
            for i, p in enumerate(self._parameters)
        ]
        return Trace(
            events=list(recorder.events),
            parameters=parameters,
            units=self._units,
            operators=recorder.costs(),
            micro_steps=self.micro_steps,
            steps=settings.steps,
            logits_bytes=logits_bytes,
            optimizer=self._optimizer_name,
            spec=self._spec,
            not_understood=[f"{name}: {why}" for name, why in recorder.unknown.items()],
            answers=recorder.answers,
            recomputable_bytes=recorder.recomputable_bytes,
            portable=PORTABLE,
            torch_version=str(torch.__version__),
        )

    def release(self, model: torch.nn.Module) -> None:
        """Take the hooks off."""
        for hook in self._hooks:
            hook.remove()
        for parameter in model.parameters():
            parameter.grad = None
        self._held = self._optimizer = None


def _with_seconds(trace: Trace, seconds: float) -> Trace:
    import msgspec

    return msgspec.structs.replace(trace, seconds=seconds)
