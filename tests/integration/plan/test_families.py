"""Model families whose layers are not a plain transformer's: mixtures of experts, and attention without a fused kernel."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from integration.plan.counted_memory import counted  # noqa: E402
from trainbudget.plan.memory import TargetGpu, Trace, predict_memory, spec_of, trace_config  # noqa: E402
from trainbudget.plan.replay import replay  # noqa: E402
from trainbudget.plan.simulated_device import backend  # noqa: E402
from trainbudget.plan.simulated_device.grouped_matmul import grouped_mm, grouped_mm_flops  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not backend.available(), reason="this torch cannot register a device from Python"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # transformers' own renamings
]

GPU = TargetGpu()
BATCH, LENGTH = 4, 96
SIZES = {
    "vocab_size": 2000,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
}
MIXTURE = {"model_type": "mixtral", **SIZES, "num_local_experts": 8, "num_experts_per_tok": 2}


def traced(config: dict[str, Any], **changes: Any) -> Trace:
    values = {
        "micro_batch": BATCH,
        "sequence_length": LENGTH,
        "loop": "plain",
        "max_grad_norm": None,
        "optimizer": "sgd",
        **changes,
    }
    return trace_config(config, spec_of(values), GPU)


def flops(trace: Trace) -> int:
    return sum(o.flops * o.count for o in trace.operators)


@pytest.mark.skipif(not hasattr(torch.nn.functional, "grouped_mm"), reason="this torch has no grouped products")
@pytest.mark.parametrize(
    ("a", "b", "made"),
    [
        ((24, 16), (3, 16, 8), 2 * 24 * 16 * 8),
        ((3, 5, 16), (16, 24), 2 * 5 * 16 * 24),
        ((16, 24), (24, 8), 2 * 16 * 24 * 8),
        ((3, 5, 16), (3, 16, 8), 2 * 3 * 5 * 16 * 8),
    ],
    ids=["rows by groups", "groups by rows", "rows by rows", "groups by groups"],
)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_grouped_products_have_the_shape_of_real_ones(a: Any, b: Any, made: int, dtype: str) -> None:
    one, other = torch.ones(a, dtype=getattr(torch, dtype)), torch.ones(b, dtype=getattr(torch, dtype))
    offs = None if len(a) == len(b) == 3 else torch.tensor([8, 16, 24], dtype=torch.int32)
    real = torch.nn.functional.grouped_mm(one, other, offs=offs)
    found = grouped_mm(one.to("meta"), other.to("meta"), offs if offs is None else offs.to("meta"))
    assert (found.shape, found.dtype) == (real.shape, real.dtype)
    assert grouped_mm_flops(a, b) == made


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16_pure"])
def test_a_mixture_of_experts_works_with_two_of_them_for_each_token(precision: str) -> None:
    """The work of its trained step: three times the products of each token with everything it meets."""
    trace = traced(MIXTURE, precision=precision)
    hidden, width, layers = SIZES["hidden_size"], SIZES["intermediate_size"], SIZES["num_hidden_layers"]
    attention = hidden * (hidden + hidden // 2 + hidden // 2 + hidden)  # two key-value heads of four
    met = layers * (attention + 8 * hidden + 2 * 3 * hidden * width) + hidden * SIZES["vocab_size"]
    scores = layers * 2 * LENGTH * hidden // 2  # causal: half of query-key and of weights-value products
    assert flops(trace) == pytest.approx(3 * 2 * BATCH * LENGTH * (met + scores), rel=0.05)
    assert trace.not_understood == []


def test_a_mixtures_step_allocates_what_it_allocates_on_the_cpu() -> None:
    torch.manual_seed(0)
    values = {k: v for k, v in MIXTURE.items() if k != "model_type"}
    model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**values, attn_implementation="eager")).train()
    optimizer, held = torch.optim.SGD(model.parameters(), lr=1e-4, foreach=True), []

    def step() -> None:
        ids = torch.randint(0, 2000, (BATCH, LENGTH))
        held[:] = [model(input_ids=ids, labels=ids, use_cache=False)["loss"]]
        held[0].backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    above, _ = counted(step)
    trace = traced(MIXTURE, attention="eager")
    lasting = sum(p.elements * p.item_bytes for p in trace.parameters)
    assert replay(trace, cublas_bytes=0, exact=True).peak.allocated_bytes - lasting == pytest.approx(above, rel=0.01)


@pytest.mark.parametrize("family", ["gemma2", "bloom"])
def test_a_family_without_fused_attention_is_traced_as_it_is_loaded(family: str) -> None:
    """transformers refuses `sdpa` by name for it and takes eager by itself."""
    config = {"model_type": family, **SIZES, "n_layer": 3, "n_head": 4, "head_dim": 32}
    asked, eager, flash = (
        predict_memory(traced(config, attention=a, precision="bf16"), GPU) for a in ("sdpa", "eager", "flash_attention_2")
    )
    assert asked.device == eager.device
    assert flash.fits
