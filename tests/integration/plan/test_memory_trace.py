"""Real traced steps: known peaks, user code that asks for CUDA, failures in one line. Needs torch and transformers, no GPU."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from trainbudget.errors import ConfigError  # noqa: E402
from trainbudget.plan.allocator import MIB  # noqa: E402
from trainbudget.plan.memory import (  # noqa: E402
    EvalSpec,
    TargetGpu,
    TraceFailed,
    TrainSpec,
    predict_memory,
    spec_of,
    trace_config,
    trace_in_subprocess,
    trace_step,
)
from trainbudget.plan.simulated_device import backend  # noqa: E402
from trainbudget.plan.tracing.trace import Category, Kind  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not backend.available(), reason="this torch cannot register a device from Python"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # transformers' own renamings
]

GPU = TargetGpu()
TINY = {
    "model_type": "llama",
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
BERT_LARGE = {
    "model_type": "bert",
    "vocab_size": 30522,
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}


def spec(**changes: Any) -> TrainSpec:
    return spec_of({"micro_batch": 2, "sequence_length": 64, **changes})


def allocated_mib(config: dict[str, Any], values: TrainSpec, gpu: TargetGpu = GPU) -> float:
    return predict_memory(trace_config(config, values, gpu), gpu).allocated.value / MIB


# Peaks that fake CUDA tensors give for the same steps, storage by storage (torch 2.13): an independent way to the same numbers.
@pytest.mark.parametrize(
    ("changes", "capability", "mib"),
    [
        ({"micro_batch": 4}, (8, 0), 7093.8),
        ({"micro_batch": 4, "precision": "fp16"}, (8, 0), 6496.2),
        ({"micro_batch": 4, "precision": "fp16", "attention": "eager", "optimizer": "adamw_loop"}, (7, 0), 9245.2),
        ({"micro_batch": 8, "activation_checkpointing": "non_reentrant", "max_grad_norm": 1.0}, (8, 0), 6412.5),
    ],
)
def test_known_peaks_of_bert_large(changes: dict[str, Any], capability: tuple[int, int], mib: float) -> None:
    values = {"sequence_length": 512, "task": "sequence_classification", "loop": "plain", "max_grad_norm": None, **changes}
    gpu = TargetGpu(compute_capability=capability)
    assert allocated_mib(BERT_LARGE, spec_of(values), gpu) == pytest.approx(mib, abs=0.1)


def test_parameters_and_states_are_counted_exactly() -> None:
    trace = trace_config(TINY, spec(), GPU)
    found = predict_memory(trace, GPU).categories
    assert found["optimizer_state"] >= 2 * 4 * trace.parameter_elements
    assert found["parameters"] == pytest.approx(4 * trace.parameter_elements, rel=0.02)  # 512-byte rounding of small tensors


def test_tied_weights_stay_tied_in_every_dtype() -> None:
    tied = {**TINY, "tie_word_embeddings": True}
    for values in (spec(), spec(precision="bf16_pure")):
        assert (
            trace_config(tied, values, GPU).parameter_elements == trace_config(TINY, values, GPU).parameter_elements - 64 * 1000
        )


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "tf32"},
        {"precision": "bf16", "activation_checkpointing": "reentrant"},
        {"precision": "bf16", "activation_checkpointing": "non_reentrant", "checkpoint_every_n_layers": 2},
        {"precision": "bf16", "attention": "eager"},
        {"precision": "bf16", "attention": "flash_attention_2"},
        {"precision": "bf16", "pad": False},
        {"precision": "bf16", "peft": {"type": "lora", "r": 8}},
        {"precision": "bf16", "peft": {"type": "dora", "r": 8}},
        {"precision": "bf16", "peft": {"type": "ia3"}},
        {
            "precision": "bf16",
            "peft": {"type": "lora", "r": 8},
            "quantization": "nf4_double",
            "activation_checkpointing": "reentrant",
        },
        {"precision": "bf16", "peft": {"type": "lora", "r": 8}, "quantization": "nf4", "quantization_stack": "0.41.1"},
        {"precision": "fp16", "peft": {"type": "lora", "r": 8}, "quantization": "int8"},
        {"optimizer": "adafactor"},
        {"optimizer": "adamw_torch_fused"},
        {"optimizer": "adamw_bnb_8bit"},
        {"optimizer": "sgd"},
        {"gradient_accumulation": 4, "zero_grad": "keep"},
        {"precision": "bf16", "evaluation": {"batches": 4, "keep_logits": True}},
        {"strategy": "ddp", "world_size": 4},
        {"precision": "bf16", "strategy": "fsdp", "world_size": 4},
        {"precision": "bf16", "strategy": "fsdp2", "world_size": 4, "gradient_accumulation": 4},
        {"precision": "bf16", "strategy": "zero1", "world_size": 4},
        {"precision": "bf16", "strategy": "zero2", "world_size": 4},
        {"precision": "bf16", "strategy": "zero3", "world_size": 4},
    ],
)
def test_every_covered_setting_is_traced_without_a_fall_back(changes: dict[str, Any]) -> None:
    trace = trace_config(TINY, spec(**changes), GPU)
    found = predict_memory(trace, GPU)
    assert found.source == "trace"
    assert found.not_understood == ()
    assert 0 < found.allocated.low <= found.allocated.value <= found.reserved.value
    assert trace.flops_per_micro_step > 6 * 0.5 * 2 * 64 * 4 * 64 * 128


def test_checkpointing_trades_activations_for_work() -> None:
    plain = trace_config(TINY, spec(sequence_length=512), GPU)
    saved = trace_config(TINY, spec(sequence_length=512, activation_checkpointing="non_reentrant"), GPU)
    assert predict_memory(saved, GPU).allocated.value < predict_memory(plain, GPU).allocated.value
    assert saved.flops_per_micro_step > plain.flops_per_micro_step


def test_the_old_four_bit_layer_keeps_its_input() -> None:
    values = {"precision": "bf16", "peft": {"type": "lora", "r": 8, "target_modules": ["q_proj"]}, "quantization": "nf4"}
    old = allocated_mib(TINY, spec(sequence_length=1024, quantization_stack="0.43.1", **values))
    new = allocated_mib(TINY, spec(sequence_length=1024, quantization_stack="0.43.2", **values))
    assert old > new


def test_an_unknown_optimizer_is_said() -> None:
    trace = trace_config(TINY, spec(optimizer="galore_adamw"), GPU)
    assert "galore_adamw" in trace.not_understood[0]


class AsksForCuda(torch.nn.Module):
    """A user's model that takes its CUDA path only when everything says CUDA."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
        self.seen: list[bool] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = [
            x.is_cuda,
            x.device.type == "cuda",
            str(self.layer.weight.device) == "cuda:0",
            torch.cuda.is_available(),
            torch.cuda.get_device_capability() == (8, 0),
            torch.cuda.is_bf16_supported(),
        ]
        with torch.autocast(device_type=x.device.type, dtype=torch.bfloat16):
            y = self.layer(x) + torch.zeros(8, device=x.device) + torch.ones(8).cuda() + torch.ones(8).to("cuda")
            self.seen.append(y.dtype == torch.float32 and torch.is_autocast_enabled("cuda"))
        return y.sum()


def _trace(model: Any, step: Any = None, **more: Any) -> Any:
    return trace_step(
        model=model,
        batches=[{"x": torch.zeros(4, 8)}],
        training_step=step or (lambda m, batch: m(batch["x"])),
        optimizer_factory=torch.optim.AdamW,
        target=GPU,
        **more,
    )


def test_user_code_takes_the_cuda_path() -> None:
    model = AsksForCuda()
    _trace(model)
    assert model.seen == [True] * 7


def test_user_code_takes_the_cuda_path_in_recomputation_too() -> None:
    model = AsksForCuda()
    answers: list[bool] = []

    def step(m: Any, batch: Any) -> Any:
        def inner(x: torch.Tensor) -> torch.Tensor:
            answers.append(x.is_cuda and torch.zeros(8, device=x.device).is_cuda)
            return m(x)

        return torch.utils.checkpoint.checkpoint(inner, batch["x"], use_reentrant=False)

    _trace(model, step)
    assert answers == [True] * 4  # forward and recomputation, two steps


def test_everything_is_put_back_after_a_trace() -> None:
    available, device = torch.cuda.is_available, torch.device("cpu")
    _trace(AsksForCuda())
    assert torch.cuda.is_available is available
    assert torch.zeros(1).device == device
    assert torch.zeros(1).is_cuda is False
    assert "is_cuda" not in vars(torch.Tensor)


def test_a_step_that_runs_backward_itself_is_noticed() -> None:
    def step(m: Any, batch: Any) -> Any:
        loss = m(batch["x"])
        loss.backward()
        return loss.detach()

    ours, own = _trace(AsksForCuda()), _trace(AsksForCuda(), step)
    assert predict_memory(own, GPU).allocated.value == predict_memory(ours, GPU).allocated.value


def test_scaled_losses_still_reach_the_optimizer() -> None:
    def step(m: Any, batch: Any) -> Any:
        scaler = torch.amp.GradScaler("cuda")
        loss = m(batch["x"])
        scaler.scale(loss).backward()
        return loss.detach()

    assert "optimizer_state" in predict_memory(_trace(AsksForCuda(), step), GPU).categories


def test_control_flow_that_fails_is_one_line() -> None:
    def step(m: Any, batch: Any) -> Any:
        raise RuntimeError("shape\nmismatch")

    with pytest.raises(TraceFailed, match="shape mismatch") as caught:
        _trace(AsksForCuda(), step)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "no_such_model"}, "no_such_model"),
        ({}, "None"),
        ("/no/such/config.json", "no readable"),
        ("no.such.module:build", "no.such.module"),
    ],
)
def test_unreadable_models_are_refused_in_one_line(config: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        trace_config(config, spec(), GPU)
    assert "\n" not in str(caught.value)


def test_the_child_process_gives_the_same_trace() -> None:
    here, there = trace_config(TINY, spec(), GPU), trace_in_subprocess(TINY, spec(), GPU)
    assert there.events == here.events
    assert there.operators == here.operators


def test_the_child_process_says_what_is_wrong() -> None:
    with pytest.raises(ConfigError, match="no_such_model"):
        trace_in_subprocess({"model_type": "no_such_model"}, spec(), GPU)
    with pytest.raises(TraceFailed, match="longer than"):
        trace_in_subprocess(TINY, spec(), GPU, timeout_s=0.1)


def test_every_autocast_operator_of_this_torch_is_known() -> None:
    from trainbudget.plan.simulated_device.autocast import install_autocast

    backend.install()
    unregistered = torch.library.Library(
        "trainbudget_policy_check", "DEF"
    )  # only the comparison is wanted, not a second registration
    unregistered.impl = lambda *a, **k: None  # type: ignore[method-assign]
    assert install_autocast(unregistered) == []


def test_evaluation_keeps_the_optimizer_state() -> None:
    values = spec(evaluation=EvalSpec(batches=200, keep_logits=True), sequence_length=256)
    found = predict_memory(trace_config(TINY, values, GPU), GPU)
    assert found.peak_phase == "evaluation"
    assert found.categories["optimizer_state"] > 0


def storages(trace: Any, category: Category) -> list[int]:
    """Bytes of every storage that was ever born in a category."""
    return [b for kind, _, b, c in trace.events if kind == Kind.MALLOC and c == category]


def test_an_emptied_cache_gives_segments_back() -> None:
    """A short batch leaves segments too small for the long one; emptied in between, they do not stay."""
    lengths = [{"x": torch.zeros(rows, 256)} for rows in (20_000, 60_000)]

    def reserved(empties: bool) -> int:
        def step(model: Any, batch: Any) -> Any:
            if empties:
                torch.cuda.empty_cache()
            return model(batch["x"]).square().sum()

        trace = trace_step(
            model=torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4))),
            batches=lengths,
            training_step=step,
            optimizer_factory=lambda p: torch.optim.SGD(p, lr=0.1),
            target=GPU,
        )
        return predict_memory(trace, GPU).reserved.value

    kept, emptied = reserved(False), reserved(True)
    assert kept - emptied > 3 * 20_000 * 256 * 4  # at least three of the short batch's activations cannot be used again
    assert torch.cuda.empty_cache.__module__ == "torch.cuda.memory"


def test_slices_of_a_decomposition_keep_it_as_on_the_card() -> None:
    """cuSOLVER gives Vh by rows: its first rows are contiguous, so ``contiguous()`` copies nothing and the whole stays."""

    class FirstRows(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(64, 64)
            rows = torch.linalg.svd(torch.zeros(512, 512, device="cuda"), full_matrices=False)[2][:16]
            self.register_buffer("rows", rows.contiguous())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x).sum()

    trace = trace_step(
        model=FirstRows,
        batches=[{"x": torch.zeros(4, 64)}],
        training_step=lambda m, batch: m(batch["x"]),
        optimizer_factory=None,
        target=GPU,
    )
    assert 512 * 512 * 4 in storages(trace, Category.BUFFERS) + storages(trace, Category.PARAMETERS)


@pytest.mark.parametrize(("loss", "tensors"), [("mse_loss", 1), ("smooth_l1_loss", 1), ("huber_loss", 0)])
def test_reduced_losses_keep_what_they_were_computed_in(loss: str, tensors: int) -> None:
    """The mean is written into the first element of the full loss, which lives as long as the scalar (real tensors too)."""
    function = getattr(torch.nn.functional, loss)
    real = function(torch.zeros(64, 1024), torch.ones(64, 1024)).untyped_storage().nbytes()
    trace = _trace(
        torch.nn.Linear(8, 8),
        lambda m, batch: function(m(batch["x"]).sum() + torch.zeros(64, 1024, device="cuda"), torch.ones(64, 1024).cuda()),
    )
    assert real == (64 * 1024 * 4 if tensors else 4)
    before = predict_memory(trace, GPU).allocated.value
    assert before > 0
    born = [b for kind, _, b, _ in trace.events if kind == Kind.MALLOC]
    without = _trace(torch.nn.Linear(8, 8), lambda m, batch: (m(batch["x"]).sum() + torch.zeros(64, 1024, device="cuda")).sum())
    full = 64 * 1024 * 4
    extra = born.count(full) - [b for kind, _, b, _ in without.events if kind == Kind.MALLOC].count(full)
    assert extra >= tensors


def test_chosen_elements_are_as_many_as_there_could_be() -> None:
    def step(model: Any, batch: Any) -> Any:
        y = model(batch["x"])
        assert not torch.equal(y, batch["x"]) or y.shape == batch["x"].shape
        return y.masked_select(y > 0).sum() + torch.unique(batch["x"]).numel()

    trace = _trace(torch.nn.Linear(8, 8), step)
    assert trace.answers > 0
    assert 4 * 8 * 4 in storages(trace, Category.ACTIVATIONS)


def test_compiled_code_may_keep_less_and_the_plan_says_so() -> None:
    eager, compiled = (predict_memory(trace_config(TINY, spec(sequence_length=256, compiled=c), GPU), GPU) for c in (False, True))
    assert compiled.allocated.value == eager.allocated.value
    assert compiled.allocated.high == eager.allocated.high
    assert compiled.allocated.low < eager.allocated.low
    assert any(line.startswith("torch.compile") for line in compiled.not_understood)
    assert not eager.not_understood


def test_what_a_compiler_may_compute_again_is_what_cheap_operators_wrote() -> None:
    """Two products and a gelu between them: the gelu's result may be computed again, the products' may not."""

    class Mlp(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = torch.nn.Linear(8, 1024), torch.nn.Linear(1024, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.down(torch.nn.functional.gelu(self.up(x))).sum()

    trace = trace_step(
        model=Mlp,
        batches=[{"x": torch.zeros(512, 8)}],
        training_step=lambda m, batch: m(batch["x"]),
        optimizer_factory=None,
        target=GPU,
    )
    assert trace.recomputable_bytes == pytest.approx(512 * 1024 * 4, abs=512)


@pytest.mark.parametrize("family", ["gemma2", "bloom"])
def test_a_family_without_fused_attention_is_traced_as_it_is_loaded(family: str) -> None:
    """transformers refuses `sdpa` by name for it and takes eager by itself."""
    config = {**TINY, "model_type": family, "n_layer": 2, "n_head": 4, "head_dim": 16}
    asked, eager, flash = (
        predict_memory(trace_config(config, spec(attention=a, precision="bf16"), GPU), GPU)
        for a in ("sdpa", "eager", "flash_attention_2")
    )
    assert asked.device == eager.device
    assert flash.fits
