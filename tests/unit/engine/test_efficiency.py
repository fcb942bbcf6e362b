"""The efficiency family: what it raises, on what evidence, and what it must not take for waste."""

from __future__ import annotations

import csv
from importlib import resources
from statistics import median

import pytest

from trainbudget.engine.cards import GIB, LADDER, card_of, smaller_cards
from trainbudget.engine.detect.efficiency.settings_words import offloads
from trainbudget.events import Bound
from trainbudget.findings import Severity
from trainbudget.plan.hardware import gpus
from unit.engine.feeding import fed, findings
from unit.engine.minimal import efficiency as minimal
from unit.engine.traces import Build


def one(events, code):
    found = findings(events, code)
    assert len(found) == 1, [f.name for f in findings(events)]
    return found[0]


def codes(events):
    return [f.code for f in findings(events)]


# --- busy but slow


def test_busy_but_slow_needs_two_opinions():
    found = one(minimal.busy_but_slow(), "busy_but_slow")
    assert found.severity is Severity.WARNING
    assert found.evidence["throughput_ratio"] == pytest.approx(0.5, abs=0.02)
    assert found.evidence["power_ratio"] == pytest.approx(0.35)
    assert "step_over_budget" not in codes(minimal.busy_but_slow())  # the consequence is not said twice


@pytest.mark.parametrize(
    "events",
    [
        minimal.busy_but_slow(power_w=390.0, step_s=1.05),  # as planned
        minimal.busy_but_slow(step_s=1.0),  # low power at full speed
        minimal.busy_but_slow(power_w=390.0),  # slow at full power: over budget, and said so by the budget
        minimal.busy_but_slow(utilization=0.4),  # not busy
        minimal.busy_but_slow(power_w=140.0, steps_total=200.0),  # no plan, one opinion
    ],
)
def test_not_busy_but_slow(events):
    assert "busy_but_slow" not in codes(events)


def test_low_utilization_at_the_planned_speed_is_nothing():
    assert codes(minimal.busy_but_slow(power_w=160.0, step_s=1.0, utilization=0.4)) == []


def test_tokens_a_second_are_a_plan_too():
    build = Build(budget={"tokens_per_s": 2000.0}).gpu()
    build.reading[0].update(utilization_ratio=1.0, power_w=120.0)
    found = one(build.start().steps(100, tokens=900.0).end(), "busy_but_slow")
    assert found.evidence["throughput_ratio"] == pytest.approx(0.45, abs=0.01)


def test_without_a_plan_two_measurements_are_information():
    build = Build().gpu()
    build.reading[0].update(utilization_ratio=1.0, power_w=120.0, sm_active_ratio=0.2)
    found = one(build.start().steps(100).end(), "busy_but_slow")
    assert found.severity is Severity.INFO


def test_model_flops_are_an_opinion():
    build = Build(budget={"step_time_s": 1.0, "flops_per_step": 40e12}).model(autocast="bf16").gpu(peak_flops={"bf16": 312e12})
    build.reading[0].update(utilization_ratio=1.0, power_w=None)
    found = one(build.start().steps(100, 2.0).end(), "busy_but_slow")
    assert found.evidence["mfu_ratio"] == pytest.approx(40 / 2 / 312, abs=0.005)
    assert found.evidence["power_ratio"] is None


def test_a_throttled_card_is_slow_for_that_reason():
    build = Build(budget={"step_time_s": 1.0}).gpu()
    build.reading[0].update(utilization_ratio=1.0, power_w=140.0, throttle=["hw_thermal_slowdown"])
    assert "busy_but_slow" not in codes(build.start().steps(100, 2.0).end())
    build = Build(budget={"step_time_s": 1.0}).gpu().start().steps(60, 1.0)
    build.reading[0].update(utilization_ratio=1.0, power_w=140.0, sm_clock_hz=0.7e9)
    assert "busy_but_slow" not in codes(build.steps(150, 2.0).end())


def test_a_standstill_is_not_busy_but_slow():
    build = Build(budget={"step_time_s": 1.0}).gpu().start().steps(60, 2.0)
    build.reading[0].update(utilization_ratio=1.0, power_w=120.0)
    assert "busy_but_slow" not in codes(build.wait(900.0).end("failed"))


# --- step over budget


def test_step_over_budget():
    found = one(minimal.step_over_budget(), "step_over_budget")
    assert found.evidence["over_ratio"] == pytest.approx(0.5, abs=0.02)


def test_a_budget_with_an_interval_and_small_excess():
    assert codes(minimal.step_over_budget(1.15)) == []
    build = Build(budget={"step_time_s": Bound(value=1.0, low=0.7, high=1.6, source="plan")}).gpu().start()
    assert codes(build.steps(150, 1.5).end()) == []


def test_waits_evaluations_and_warm_up_are_no_slow_steps():
    build = Build(budget={"step_time_s": 1.0}).gpu().start().steps(3, 20.0).steps(100, 1.0, wait_s=0.6)
    assert "step_over_budget" not in codes(build.phase("eval", 100.0).steps(50).end())


# --- padding


def test_padding_waste_and_its_money():
    found = one(minimal.padding_waste(), "padding_waste")
    assert found.evidence["padding_ratio"] == pytest.approx(0.5)
    assert found.evidence["cost"] == pytest.approx(found.evidence["gpu_seconds"] * 2.0 / 3600.0, rel=0.01)
    assert codes(minimal.padding_waste(0.85)) == []
    assert codes(Build().gpu().start().steps(150, tokens=1000.0).end()) == []  # not counted


# --- memory


def test_underused_memory_names_cards_that_would_do():
    found = one(minimal.underused_memory(), "underused_memory")
    assert found.severity is Severity.INFO
    assert found.evidence["peak_bytes"] == pytest.approx(18.5 * GIB)
    assert found.evidence["fits_on"] == ["A10G", "L40S"] or found.evidence["fits_on"] == ["L4", "A10G", "L40S"]


def test_memory_that_is_used_or_unknown_is_not_underused():
    assert codes(minimal.memory(55.0, 20.0).end()) == []
    assert codes(minimal.memory(18.0, 8.0, steps=150).end()) == []  # too early
    assert codes(minimal.memory(18.0, 8.0, settings={"eval_strategy": "steps"}).end()) == []  # evaluation to come
    build = Build().gpu(mig=True, memory_limit_bytes=None)
    assert codes(build.start().steps(260).end()) == []


def test_the_peak_decides_not_what_rests_between_steps():
    assert codes(minimal.memory(70.0, 10.0).end()) == []


def test_smaller_cards_hold_the_peak_are_cheaper_and_able():
    cards = smaller_cards(35 * GIB, "NVIDIA H100 80GB HBM3", minimum_capability=8.0)
    assert [c.name for c in cards] == ["L40S", "A100-80GB", "A100-40GB", "H200"]
    assert smaller_cards(15 * GIB, "NVIDIA A100-SXM4-40GB", minimum_capability=8.0)[0].name == "L4"
    assert "T4" in [c.name for c in smaller_cards(5 * GIB, "NVIDIA A100-SXM4-40GB", minimum_capability=0.0)]
    assert smaller_cards(5 * GIB, "NVIDIA GeForce RTX 3090", minimum_capability=0.0) == ()
    assert card_of("NVIDIA L40S").name == "L40S"
    assert card_of("NVIDIA A100-SXM4-40GB").name == "A100-40GB"


def test_the_ladder_agrees_with_the_tables():
    table = {spec.name: spec for spec in gpus()}
    for card in LADDER:
        assert table[card.name].memory_limit_bytes == pytest.approx(card.usable_gib * GIB, rel=0.005), card.name
        assert table[card.name].sm == round(card.capability * 10), card.name
    text = resources.files("trainbudget.plan").joinpath("data/prices.csv").read_text(encoding="utf-8")
    prices: dict[str, list[float]] = {}
    for row in csv.DictReader(text.splitlines()):
        if row["on_demand_usd_per_hour"] and float(row["accelerator_count"]) >= 1:
            each = float(row["on_demand_usd_per_hour"]) / float(row["accelerator_count"])
            prices.setdefault(row["accelerator"], []).append(each)
    for card in LADDER:
        assert median(prices[card.name]) == pytest.approx(card.list_usd_per_hour, rel=0.02), card.name


def test_needless_recompute_only_when_it_would_fit_without():
    found = one(minimal.needless_recompute(), "needless_recompute")
    assert found.evidence["without_bytes"] == pytest.approx((15 + 3.1 * 15.5) * GIB, rel=0.01)
    assert "underused_memory" not in codes(minimal.needless_recompute())
    assert codes(minimal.memory(50.0, 15.0, settings={"gradient_checkpointing": True}).end()) == []
    assert "needless_recompute" not in codes(minimal.memory(30.0, 15.0, settings={"gradient_checkpointing": False}).end())


def test_needless_offload_only_with_known_sizes():
    found = one(minimal.needless_offload(), "needless_offload")
    assert found.evidence["offloaded"] == "optimizer"
    settings = {"deepspeed": {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}}
    assert "needless_offload" not in codes(minimal.memory(30.0, 15.0, settings=settings).end())
    large = minimal.memory(30.0, 15.0, settings=settings, budget={"optimizer_state_bytes": 60 * GIB})
    assert "needless_offload" not in codes(large.end())


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"strategy": "deepspeed_stage_2_offload"}, "optimizer"),
        ({"strategy": "deepspeed_stage_3_offload"}, "parameters"),
        ({"strategy": "fsdp_cpu_offload"}, "parameters"),
        ({"fsdp": "full_shard offload"}, "parameters"),
        ({"fsdp_config": {"cpu_offload": True}}, "parameters"),
        ({"activation_checkpointing_kwargs": {"offload": True}}, "activations"),
        ({"deepspeed": {"zero_optimization": {"stage": 3}}}, None),
        ({"deepspeed": "ds.json"}, None),
        ({"strategy": "ddp", "fsdp_config": {}}, None),
    ],
)
def test_offload_is_read_in_each_frameworks_words(settings, what):
    assert offloads(fed(Build(settings=settings).events).timeline) == what


# --- precision


def test_fp32_on_tensor_cores():
    assert one(minimal.precision_unused(), "precision_unused").severity is Severity.INFO
    assert one(minimal.precision_unused(0.003), "precision_unused").severity is Severity.WARNING
    assert codes(minimal.precision_unused(0.25)) == []


@pytest.mark.parametrize(
    ("settings", "model", "environment", "raised"),
    [
        ({"bf16": False, "fp16": False}, {"parameter_dtype": "float32"}, None, True),
        ({"bf16": True, "fp16": False}, {"parameter_dtype": "float32"}, None, False),
        ({"bf16": False, "fp16": False}, None, None, False),  # the weights may be bf16
        ({"bf16": False}, {"parameter_dtype": "float32"}, None, False),  # fp16 is unknown
        ({"bf16": False, "fp16": False, "tf32": True}, {"parameter_dtype": "float32"}, None, False),
        ({"precision": "32-true"}, {"parameter_dtype": "torch.float32"}, None, True),
        ({"precision": "bf16-mixed"}, {"parameter_dtype": "torch.float32"}, None, False),
        ({"precision": "32-true"}, None, {"float32_matmul_precision": "high"}, False),
        (None, {"parameter_dtype": "bfloat16", "autocast": "no"}, None, False),
        (None, {"parameter_dtype": "float32", "autocast": "bf16"}, None, False),
    ],
)
def test_fp32_is_only_claimed_where_it_is_known(settings, model, environment, raised):
    build = Build(settings=settings, environment=environment)
    if model:
        build.model(**model)
    assert ("precision_unused" in codes(build.gpu().start().steps(100).end())) is raised


def test_no_tensor_cores_no_finding():
    build = Build().model(parameter_dtype="float32", autocast="no").gpu(name="Tesla P100-PCIE-16GB", compute_capability="6.0")
    assert codes(build.start().steps(100).end()) == []
    build = Build().model(parameter_dtype="float32", autocast="no").gpu(name="Something", compute_capability=None)
    assert codes(build.start().steps(100).end()) == []


# --- kernels


@pytest.mark.parametrize("cause", ["attention", "optimizer", "logits"])
def test_slow_kernel_paths(cause):
    assert one(minimal.MINIMAL[f"slow_kernel_path/{cause}"](), "slow_kernel_path").cause == cause


@pytest.mark.parametrize(
    "events",
    [
        minimal.eager_attention(256.0),
        minimal.slow_optimizer(0.05),
        minimal.slow_optimizer(optim="adamw_torch_fused"),
        minimal.large_logits(4096.0),
        Build().model(attention="sdpa").gpu().start().steps(100, max_sequence_tokens=4096.0).end(),
        Build(settings={"optim": "adamw_torch"}).gpu().start().steps(150, optimizer_s=0.6, gpu_busy_s=0.4).end(),
        Build(settings={"use_liger_kernel": True}).model(vocab_size=128_256).gpu().start().steps(100, tokens=32768.0).end(),
    ],
)
def test_fast_kernels_and_other_reasons(events):
    assert "slow_kernel_path" not in codes(events)


def test_logits_are_those_of_a_micro_batch():
    build = Build(settings={"gradient_accumulation_steps": 8}).model(vocab_size=128_256).gpu().start()
    assert "slow_kernel_path" not in codes(build.steps(100, tokens=32768.0).end())


# --- batch and scaling


def test_small_micro_batches():
    found = one(minimal.batch_arithmetic(), "batch_arithmetic")
    assert found.evidence["what"] == "small_micro_batch"
    assert found.evidence["doubled_bytes"] == pytest.approx((10 + 2 * 20.5) * GIB, rel=0.01)
    full = minimal.memory(60.0, 10.0, settings={"per_device_train_batch_size": 2, "gradient_accumulation_steps": 8})
    assert codes(full.end()) == []


@pytest.mark.parametrize(
    ("samples", "world_size", "raised"),
    [(16.0, 1, True), (32.0, 1, False), (256.0, 8, False), (128.0, 1, True), (30.0, 1, False)],
)
def test_effective_batch_is_the_product(samples, world_size, raised):
    build = Build(settings={"per_device_train_batch_size": 32, "gradient_accumulation_steps": 1}, world_size=world_size)
    found = findings(build.gpu().start().steps(260, samples=samples).end(), "batch_arithmetic")
    assert bool(found) is raised
    if raised:
        assert found[0].evidence["what"] == "effective_batch"


def test_scaling_inefficient_against_one_gpu():
    found = one(minimal.scaling_inefficient(), "scaling_inefficient")
    assert found.evidence["gpus"] == 8
    assert found.evidence["efficiency_ratio"] == pytest.approx(0.7, abs=0.02)
    assert codes(minimal.scaling_inefficient(0.9)) == []
    alone = Build(budget={"step_time_one_gpu_s": 0.5}).gpu().start().steps(200).end()
    assert codes(alone) == []


def test_padding_that_is_only_sampled_is_found_too():
    build = Build().gpu().start()
    build.steps(400, fields=lambda n: {"tokens": 1000.0, "useful_tokens": 600.0} if n % 10 == 0 else {"tokens": 1000.0})
    assert one(build.end(), "padding_waste").evidence["padding_ratio"] == pytest.approx(0.4)
    short = Build().gpu().start().steps(60, 0.2, tokens=1000.0, useful_tokens=500.0)
    assert codes(short.end()) == []  # six seconds of padding


def test_length_sorted_batches_are_not_over_budget():
    """Longest first in bins of 50: the mean is the plan, the first steps of each bin are 40 % longer."""
    build = Build(budget={"step_time_s": 1.0}).gpu().start()
    for n in range(400):
        build.steps(1, 1.4 - 0.8 * (n % 50) / 50)
    assert codes(build.end()) == []


def test_longer_batches_at_the_planned_tokens_a_second_are_as_planned():
    build = Build(budget={"step_time_s": 1.0, "tokens_per_s": 1000.0}).gpu().start().steps(150, 1.5, tokens=1500.0)
    assert codes(build.end()) == []
    slow = Build(budget={"step_time_s": 1.0, "tokens_per_s": 1000.0}).gpu().start().steps(150, 1.5, tokens=1000.0)
    assert codes(slow.end()) == ["step_over_budget"]
