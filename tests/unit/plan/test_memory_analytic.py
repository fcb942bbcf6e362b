"""The fall-back from formulas: right on states, wide on activations, and it says that it is one."""

from __future__ import annotations

import pytest

from trainbudget.errors import ConfigError
from trainbudget.plan.allocator import GIB
from trainbudget.plan.analytic import model_size, predict_analytic
from trainbudget.plan.train_spec import TargetGpu, TrainSpec

LLAMA_7B = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "intermediate_size": 11008,
    "vocab_size": 32000,
}
GPU = TargetGpu()


def test_the_parameter_count_of_a_known_model() -> None:
    size = model_size({**LLAMA_7B, "hidden_act": "silu"})
    assert size.parameters == pytest.approx(6.738e9, rel=0.001)


def test_states_are_sixteen_bytes_a_parameter_in_fp32_adamw() -> None:
    found = predict_analytic(None, TrainSpec(), GPU, reason="no config", parameters=1e9)
    states = sum(found.categories[k] for k in ("parameters", "gradients", "optimizer_state"))
    assert states == pytest.approx(16e9)


def test_it_says_what_it_is_and_why() -> None:
    found = predict_analytic(LLAMA_7B, TrainSpec(precision="bf16"), GPU, reason="unknown operator")
    assert found.source == "analytic"
    assert "unknown operator" in found.not_understood[0]
    assert found.allocated.high > 1.02 * found.allocated.value > found.allocated.low


def test_checkpointing_and_fused_attention_shrink_activations() -> None:
    def activations(**changes: object) -> int:
        spec = TrainSpec(precision="bf16", sequence_length=4096, **changes)  # type: ignore[arg-type]
        return predict_analytic(LLAMA_7B, spec, GPU, reason="x").categories["activations"]

    assert activations(activation_checkpointing="reentrant") < 0.1 * activations()
    assert activations(attention="eager") > 2 * activations()


def test_sharding_divides_what_it_shards() -> None:
    def states(strategy: str) -> float:
        spec = TrainSpec(precision="bf16", strategy=strategy, world_size=8 if strategy != "none" else 1)  # type: ignore[arg-type]
        return predict_analytic(LLAMA_7B, spec, GPU, reason="x").categories["optimizer_state"]

    assert states("zero2") == pytest.approx(12 / 8 * 6.476e9, rel=0.35)
    assert states("fsdp") == pytest.approx(states("none") / 8)


def test_a_70b_model_does_not_fit_one_card_and_a_small_one_does() -> None:
    assert predict_analytic(None, TrainSpec(), GPU, reason="x", parameters=70e9).fits is False
    assert predict_analytic(None, TrainSpec(sequence_length=128), GPU, reason="x", parameters=1e8).fits is True


def test_nothing_known_is_an_error_and_not_a_number() -> None:
    with pytest.raises(ConfigError, match="parameter count"):
        predict_analytic({}, TrainSpec(), GPU, reason="x")


def test_qlora_weights_are_about_half_a_byte() -> None:
    spec = TrainSpec(precision="bf16", quantization="nf4", peft={"type": "lora", "r": 8})
    found = predict_analytic(LLAMA_7B, spec, GPU, reason="x")
    assert 3.3 * GIB < found.categories["parameters"] < 5 * GIB
    assert found.categories["optimizer_state"] < 0.2 * GIB
