"""The smallest traces that raise each code and cause of the efficiency family, and monitor_overhead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainbudget.events import AnyEvent, Self
from unit.engine.traces import GIB, Build


def busy_but_slow(power_w: float = 140.0, step_s: float = 2.0, utilization: float = 0.99, **budget: float) -> list[AnyEvent]:
    build = Build(budget=budget or {"step_time_s": 1.0}).gpu()
    build.reading[0].update(utilization_ratio=utilization, power_w=power_w)
    return build.start().steps(100, step_s).end()


def step_over_budget(step_s: float = 1.5) -> list[AnyEvent]:
    return Build(budget={"step_time_s": 1.0}).gpu().start().steps(150, step_s).end()


def padding_waste(useful: float = 0.5) -> list[AnyEvent]:
    return Build().gpu().start().steps(150, tokens=1000.0, useful_tokens=1000.0 * useful).end()


def scaling_inefficient(alone_s: float = 0.7) -> list[AnyEvent]:
    return Build(world_size=8, budget={"step_time_one_gpu_s": alone_s}).gpu().start().steps(200).end()


def memory(peak_gib: float, rest_gib: float, *, steps: int = 260, **header: Any) -> Build:
    """An 80 GB card with this peak and this much at rest."""
    build = Build(**header).gpu()
    build.allocator[0].update(
        allocated_bytes=rest_gib * GIB,
        peak_allocated_bytes=peak_gib * GIB,
        reserved_bytes=(peak_gib + 1) * GIB,
        peak_reserved_bytes=(peak_gib + 1) * GIB,
    )
    build.reading[0].update(memory_used_bytes=(peak_gib + 1.5) * GIB, memory_free_bytes=(77.5 - peak_gib) * GIB)
    return build.start().steps(steps)


def batch_arithmetic() -> list[AnyEvent]:
    return memory(30.0, 10.0, settings={"per_device_train_batch_size": 2, "gradient_accumulation_steps": 8}).end()


def effective_batch(samples: float = 16.0) -> list[AnyEvent]:
    build = Build(settings={"per_device_train_batch_size": 32, "gradient_accumulation_steps": 1}).gpu().start()
    return build.steps(260, samples=samples).end()


def underused_memory() -> list[AnyEvent]:
    return memory(18.0, 8.0).end()


def needless_recompute() -> list[AnyEvent]:
    return memory(30.0, 15.0, settings={"gradient_checkpointing": True}).end()


def needless_offload() -> list[AnyEvent]:
    settings = {"deepspeed": {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}}
    return memory(30.0, 15.0, settings=settings, budget={"optimizer_state_bytes": 12 * GIB}).end()


def precision_unused(tensor_active: float | None = None) -> list[AnyEvent]:
    build = Build().model(parameter_dtype="float32", autocast="no").gpu()
    if tensor_active is not None:
        build.reading[0]["tensor_active_ratio"] = tensor_active
    return build.start().steps(100).end()


def eager_attention(tokens: float = 1024.0) -> list[AnyEvent]:
    return Build().model(attention="eager").gpu().start().steps(100, max_sequence_tokens=tokens).end()


def slow_optimizer(optimizer_s: float = 0.15, optim: str = "adamw_torch") -> list[AnyEvent]:
    return Build(settings={"optim": optim}).gpu().start().steps(150, optimizer_s=optimizer_s).end()


def large_logits(tokens: float = 32768.0) -> list[AnyEvent]:
    return Build().model(vocab_size=128_256).gpu().start().steps(100, tokens=tokens).end()


def monitor_overhead(hook_ratio: float = 0.03) -> list[AnyEvent]:
    build = Build().gpu().start()
    for _ in range(30):
        build.steps(10).add(Self(t_s=build.t, hook_s=hook_ratio * build.t, sample_s=0.1, feed_s=0.1, cpu_s=0.01 * build.t))
    return build.end()


MINIMAL: dict[str, Callable[[], list[AnyEvent]]] = {
    "busy_but_slow": busy_but_slow,
    "step_over_budget": step_over_budget,
    "padding_waste": padding_waste,
    "scaling_inefficient": scaling_inefficient,
    "batch_arithmetic": batch_arithmetic,
    "underused_memory": underused_memory,
    "needless_recompute": needless_recompute,
    "needless_offload": needless_offload,
    "precision_unused": precision_unused,
    "slow_kernel_path/attention": eager_attention,
    "slow_kernel_path/optimizer": slow_optimizer,
    "slow_kernel_path/logits": large_logits,
    "monitor_overhead": monitor_overhead,
}
