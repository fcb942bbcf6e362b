"""What a healthy hour is made of, drawn at random from wide ranges: every run is another, in none of them is anything wrong."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any

GIB = float(1024**3)


@dataclass(frozen=True, slots=True)
class Card:
    name: str
    memory_gib: float
    limit_w: float
    idle_w: float
    clock_mhz: float
    capability: str
    pcie_gen: int
    datacentre: bool


CARDS = (
    Card("NVIDIA A100-SXM4-80GB", 79.2, 400, 62, 1410, "8.0", 4, True),
    Card("NVIDIA A100-SXM4-40GB", 39.4, 400, 55, 1410, "8.0", 4, True),
    Card("NVIDIA H100 80GB HBM3", 79.2, 700, 72, 1980, "9.0", 5, True),
    Card("NVIDIA H200", 139.8, 700, 78, 1980, "9.0", 5, True),
    Card("NVIDIA A10G", 22.1, 300, 22, 1710, "8.6", 4, True),
    Card("NVIDIA L4", 22.0, 72, 16, 2040, "8.9", 4, True),
    Card("Tesla T4", 14.6, 70, 10, 1590, "7.5", 3, True),
    Card("Tesla V100-SXM2-32GB", 31.7, 300, 42, 1530, "7.0", 3, True),
    Card("NVIDIA GeForce RTX 3090", 23.7, 350, 24, 1740, "8.6", 4, False),
    Card("NVIDIA GeForce RTX 4090", 23.6, 450, 18, 2610, "8.9", 4, False),
    Card("NVIDIA RTX A6000", 47.5, 300, 20, 1800, "8.6", 4, False),
    Card("NVIDIA B200", 178.4, 1000, 140, 1965, "10.0", 5, True),
)


@dataclass(slots=True)
class Scenario:
    """One run. Seconds, bytes, shares; `None` = this run does not have or does not tell it."""

    seed: int
    card: Card
    framework: str
    platform: str
    interactive: bool
    gpus: int
    foreign_gpus: int
    world_size: int
    sample_period_s: float
    step_s: float
    jitter: float
    lengths: str  # fixed, random, sorted
    length_spread: float
    micro_batch: int
    accumulation: int
    wait_share: float
    startup_s: float
    announced_load: bool
    compile_s: float
    compile_announced: bool
    slow_first_steps: int
    epoch_steps: int | None
    epoch_gap_s: float
    eval_every: int | None
    eval_s: float
    save_every: int | None
    save_s: float
    log_every: int
    log_phase: bool
    utilization: float
    power_share: float
    at_cap: bool
    rest_share: float
    peak_share: float
    cache_share: float
    allocator: str  # step, sparse, none
    preallocates: bool
    reserved_bytes: float | None
    mig: bool
    unsupported: tuple[str, ...]
    broken_from_start: tuple[str, ...]
    tells_busy: bool
    tells_split: bool
    tells_tokens: bool
    tells_useful: bool
    communication: float | None
    host_bytes: float
    worker_growth: float
    workers: int
    price: float | None
    plan: bool
    knows_total: str  # known, unknown, absurd
    resumed_at: int | None
    skip_s: float
    sessions: int
    pause_s: float
    suspend_at: float | None
    suspend_s: float
    half: str
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def limit_bytes(self) -> float:
        return self.card.memory_gib * GIB * (0.5 if self.mig else 1.0)


def draw(seed: int) -> Scenario:
    """The run of a seed."""
    dice = random.Random(seed * 7919 + 13)
    pick, between, maybe = dice.choice, dice.uniform, (lambda p: dice.random() < p)
    card = pick(CARDS)
    framework = pick(["huggingface", "huggingface", "lightning", "loop", "loop", "keras"])
    interactive = maybe(0.12)
    world_size = pick([1, 1, 1, 2, 4, 8, 16])
    gpus = 1 if world_size > 1 else pick([1, 1, 1, 2, 4])
    mig = maybe(0.08) and card.datacentre and gpus == 1
    accumulation = pick([1, 1, 1, 2, 4, 8, 16, 32])
    step_s = math.exp(between(math.log(0.012), math.log(25.0))) * (1.0 if accumulation == 1 else between(1.0, 2.0))
    step_s = min(step_s, 40.0)
    lengths = pick(["fixed", "fixed", "random", "random", "sorted"])
    peak = between(0.35, 0.86)
    eval_every = pick([None, max(20, round(between(200, 2400) / step_s))])
    save_every = pick([None, max(20, round(between(300, 2400) / step_s))])
    half = "no" if card.capability < "7.0" else "fp16" if card.capability < "8.0" else pick(["bf16", "bf16", "bf16", "fp16"])
    micro_batch = pick([1, 2, 4, 8, 16, 32, 64])
    unsupported: tuple[str, ...] = ()
    if maybe(0.15):
        unsupported = tuple(dice.sample(["power", "temperature", "clock", "pcie", "processes", "energy"], pick([1, 2, 3])))
    if mig:
        unsupported += ("utilization",)
    scenario = Scenario(
        seed=seed,
        card=card,
        framework=framework,
        platform="wsl" if maybe(0.06) and not card.datacentre else "linux",
        interactive=interactive,
        gpus=gpus,
        foreign_gpus=pick([0, 0, 0, 1, 3]),
        world_size=world_size,
        sample_period_s=pick([0.5, 1.0, 1.0, 1.0, 2.0, 5.0, 10.0]),
        step_s=step_s,
        jitter=between(0.003, 0.05),
        lengths=lengths,
        length_spread=0.0 if lengths == "fixed" else between(0.1, 0.45),
        micro_batch=micro_batch,
        accumulation=accumulation,
        wait_share=between(0.0005, 0.035),
        startup_s=between(4.0, 280.0),
        announced_load=maybe(0.5),
        compile_s=between(20.0, 240.0) if maybe(0.2) else 0.0,
        compile_announced=maybe(0.6),
        slow_first_steps=pick([0, 1, 2, 3, 6]),
        epoch_steps=pick([None, None, max(50, round(between(400, 1500) / step_s))]),
        epoch_gap_s=between(0.1, 4.0),
        eval_every=eval_every,
        eval_s=(eval_every or 0) * step_s * between(0.01, 0.10),
        save_every=save_every,
        save_s=(save_every or 0) * step_s * between(0.002, 0.03),
        log_every=pick([1, 10, 25, 50]),
        log_phase=maybe(0.2),
        utilization=between(0.88, 1.0),
        power_share=between(0.62, 0.93),
        at_cap=maybe(0.2) and card.datacentre,
        rest_share=peak * between(0.35, 0.8),
        peak_share=peak,
        cache_share=between(0.005, 0.05),
        allocator=pick(["step", "step", "sparse", "none"]),
        preallocates=framework == "keras" or (framework == "loop" and maybe(0.1)),
        reserved_bytes=pick([None, between(0.3, 1.0) * GIB]),
        mig=mig,
        unsupported=unsupported,
        broken_from_start=("utilization", "memory_v2") if maybe(0.05) else (),
        tells_busy=maybe(0.6),
        tells_split=maybe(0.3),
        tells_tokens=maybe(0.6),
        tells_useful=maybe(0.4),
        communication=between(0.02, 0.10) if world_size > 1 and maybe(0.6) else None,
        host_bytes=between(48, 900) * GIB,
        worker_growth=pick([0.0, 0.0, between(0.005, 0.06)]),
        workers=pick([0, 2, 4, 8, 16]),
        price=pick([None, between(0.4, 12.0)]),
        plan=maybe(0.5),
        knows_total=pick(["known", "known", "unknown", "absurd"]),
        resumed_at=dice.randrange(100, 9000) if maybe(0.15) else None,
        skip_s=between(1.0, 250.0),
        sessions=pick([2, 3]) if interactive else 1,
        pause_s=between(30.0, 1300.0),
        suspend_at=between(600.0, 3000.0) if maybe(0.06) else None,
        suspend_s=between(1800.0, 60000.0),
        half=half,
    )
    scenario.settings = _settings(scenario)
    return scenario


def _settings(s: Scenario) -> dict[str, Any]:
    if s.framework == "huggingface":
        return {
            "per_device_train_batch_size": s.micro_batch,
            "gradient_accumulation_steps": s.accumulation,
            "dataloader_num_workers": s.workers,
            "bf16": s.half == "bf16",
            "fp16": s.half == "fp16",
            "gradient_checkpointing": s.seed % 3 == 0,
            "logging_steps": s.log_every,
            "eval_strategy": "no" if s.eval_every is None else "steps",
            "save_strategy": "no" if s.save_every is None else "steps",
            "optim": "adamw_torch_fused",
        }
    if s.framework == "lightning":
        precision = {"bf16": "bf16-mixed", "fp16": "16-mixed"}.get(s.half, "32-true")
        return {"precision": precision, "accumulate_grad_batches": s.accumulation, "strategy": "auto"}
    return {}
