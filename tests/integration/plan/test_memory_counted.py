"""Traced steps against the same step run for real on the CPU, every allocation counted, and against arithmetic.

Models are small, attention is eager and nothing is dropped: then the CPU's operators allocate what CUDA's do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from trainbudget.plan.memory import Category, EvalSpec, TargetGpu, Trace, spec_of, trace_config  # noqa: E402
from trainbudget.plan.replay import replay  # noqa: E402
from trainbudget.plan.simulated_device import backend  # noqa: E402
from trainbudget.plan.tracing.trace import Kind, Phase  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not backend.available(), reason="this torch cannot register a device from Python"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # transformers' own renamings
]

GPU = TargetGpu()
BATCH, LENGTH, VOCABULARY = 4, 96, 2000
CONFIG = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
}
MIXTURE = {"num_local_experts": 8, "num_experts_per_tok": 2}


def traced(family: str = "llama", **changes: Any) -> Trace:
    values = {
        "micro_batch": BATCH,
        "sequence_length": LENGTH,
        "attention": "eager",
        "loop": "plain",
        "max_grad_norm": None,
        "optimizer": "adamw_torch",
        **changes,
    }
    return trace_config({"model_type": family, **CONFIG, **(MIXTURE if family == "mixtral" else {})}, spec_of(values), GPU)


def alive(trace: Trace, category: Category) -> int:
    """Bytes of a category when the trace ends."""
    held: dict[int, list[int]] = {}
    for kind, a, b, c in trace.events:
        if kind == Kind.MALLOC:
            held[a] = [b, c]
        elif kind == Kind.FREE:
            held.pop(a, None)
        elif kind == Kind.RETAG and a in held:
            held[a][1] = c
    return sum(size for size, of in held.values() if of == category)


def counted(work: Callable[[], Any]) -> tuple[int, Any]:
    """(highest bytes allocated above the start, what ``work`` returned), by torch's own profiler."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = work()
    found, waiting = [], list(profiler.profiler.kineto_results.experimental_event_tree())
    while waiting:
        event = waiting.pop()
        waiting.extend(event.children)
        if event.tag == torch._C._profiler._EventType.Allocation:
            found.append((event.start_time_ns, event.extra_fields.alloc_size))
    now = highest = 0
    for _, size in sorted(found):
        now += size
        highest = max(highest, now)
    return highest, result


class RealRun:
    """The same model and loop on the CPU."""

    def __init__(self, model: Any, optimizer: Callable[[Any], Any]) -> None:
        self.model = model.train()
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = optimizer(self.trained)
        self.held: Any = None
        self.step()

    def step(self) -> None:
        ids = torch.zeros(BATCH, LENGTH, dtype=torch.long)
        self.held = self.model(input_ids=ids, labels=ids, use_cache=False)["loss"]
        self.held.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state_bytes(self) -> int:
        tensors = [t for s in self.optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor) and t.dim() > 0]
        return sum(t.numel() * t.element_size() for t in tensors)


def llama(adapter: Any = None) -> Any:
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG, attn_implementation="eager"))
    return model if adapter is None else peft.get_peft_model(model, adapter)


def mixtral() -> Any:
    torch.manual_seed(0)
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**CONFIG, **MIXTURE, attn_implementation="eager"))


def sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=1e-4, foreach=True)


def adamw(parameters: Any) -> Any:
    return torch.optim.AdamW(parameters, lr=1e-4, foreach=True)


def adafactor(parameters: Any) -> Any:
    return transformers.Adafactor(parameters, lr=1e-3, scale_parameter=False, relative_step=False)


ADAPTERS = {
    "full": None,
    "lora": {"type": "lora", "r": 8, "target_modules": ["q_proj", "v_proj"]},
    "dora": {"type": "dora", "r": 8, "target_modules": ["q_proj", "v_proj"]},
    "ia3": {"type": "ia3", "target_modules": ["k_proj", "v_proj", "down_proj"], "feedforward_modules": ["down_proj"]},
}


def real_adapter(name: str) -> Any:
    values = {k: v for k, v in (ADAPTERS[name] or {}).items() if k != "type"}
    if name == "ia3":
        return peft.IA3Config(task_type="CAUSAL_LM", **values)
    return peft.LoraConfig(task_type="CAUSAL_LM", use_dora=name == "dora", **values) if values else None


@pytest.mark.parametrize(
    ("adapter", "optimizer"), [("full", "adamw"), ("full", "adafactor"), ("lora", "adamw"), ("dora", "adamw"), ("ia3", "adamw")]
)
def test_a_step_allocates_what_the_same_step_allocates_on_the_cpu(adapter: str, optimizer: str) -> None:
    real = RealRun(llama(real_adapter(adapter)), adamw if optimizer == "adamw" else adafactor)
    trace = traced(peft=ADAPTERS[adapter], optimizer="adamw_torch" if optimizer == "adamw" else "adafactor")
    assert trace.trainable_elements == sum(p.numel() for p in real.trained)
    assert trace.parameter_elements == sum(p.numel() for p in real.model.parameters())
    steps = 4 * len(real.trained)  # AdamW's step counters live on the device in neither; as scalars they are below the tolerance
    assert alive(trace, Category.OPTIMIZER_STATE) == pytest.approx(real.state_bytes(), abs=steps)
    above, _ = counted(real.step)
    assert above_held(trace) == pytest.approx(above, rel=0.001)  # 0.02 % was seen


def above_held(trace: Trace) -> int:
    """Bytes of the peak above what is there between steps."""
    held = alive(trace, Category.PARAMETERS) + alive(trace, Category.BUFFERS) + alive(trace, Category.OPTIMIZER_STATE)
    return replay(trace, cublas_bytes=0, exact=True).peak.allocated_bytes - held


@pytest.mark.skipif(not hasattr(torch.nn.functional, "grouped_mm"), reason="this torch has no grouped products")
def test_a_mixtures_step_allocates_what_it_allocates_on_the_cpu() -> None:
    above, _ = counted(RealRun(mixtral(), sgd).step)
    assert above_held(traced("mixtral", optimizer="sgd")) == pytest.approx(above, rel=0.01)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16_pure"])
def test_a_mixture_of_experts_works_with_two_of_them_for_each_token(precision: str) -> None:
    """The work of its trained step: three times the products of each token with everything it meets."""
    trace = traced("mixtral", precision=precision, attention="sdpa", optimizer="sgd")
    hidden, width, layers = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["num_hidden_layers"]
    attention = hidden * (hidden + hidden // 2 + hidden // 2 + hidden)  # two key-value heads of four
    met = layers * (attention + 8 * hidden + 2 * 3 * hidden * width) + hidden * VOCABULARY
    scores = layers * 2 * LENGTH * hidden // 2  # causal: half of query-key and of weights-value products
    made = sum(o.flops * o.count for o in trace.operators)
    assert made == pytest.approx(3 * 2 * BATCH * LENGTH * (met + scores), rel=0.05)
    assert trace.not_understood == []


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor"])
def test_an_update_takes_what_it_takes_on_the_cpu(optimizer: str) -> None:
    real = RealRun(llama(), adamw if optimizer == "adamw" else adafactor)
    ids = torch.zeros(BATCH, LENGTH, dtype=torch.long)
    real.model(input_ids=ids, labels=ids, use_cache=False)["loss"].backward()
    above, _ = counted(real.optimizer.step)
    trace = traced(optimizer="adamw_torch" if optimizer == "adamw" else "adafactor")
    begins = max(i for i, e in enumerate(trace.events) if e[0] == Kind.PHASE and e[1] == Phase.OPTIMIZER)
    highest = now = 0
    size_of: dict[int, int] = {}
    for i, (kind, a, b, _) in enumerate(trace.events):
        if kind == Kind.MALLOC:
            size_of[a] = b
            now += b if i > begins else 0
        elif kind == Kind.FREE:
            now -= size_of.pop(a, 0) if i > begins else 0
        highest = max(highest, now)
    assert highest == pytest.approx(above, rel=0.01)


def test_eight_bit_state_is_two_bytes_an_element_and_a_scale_a_block() -> None:
    """bitsandbytes: uint8 moments, an fp32 scale for each 256 elements; below 4096 elements 32-bit moments."""
    trace = traced(optimizer="adamw_bnb_8bit")
    expected = 0
    for parameter in trace.parameters:
        n = parameter.elements
        expected += 2 * (n + 4 * -(-n // 256)) if n >= 4096 else 2 * 4 * n
    assert alive(trace, Category.OPTIMIZER_STATE) == expected


def test_kept_predictions_are_counted_as_the_evaluation_loop_of_transformers_joins_them() -> None:
    batches, kept_for = 6, 3
    logits = BATCH * LENGTH * VOCABULARY * 4
    from transformers.trainer_pt_utils import EvalLoopContainer

    def evaluation() -> None:
        container = EvalLoopContainer(True, padding_index=-100)
        for batch in range(batches):
            container.add(torch.zeros(BATCH, LENGTH, VOCABULARY))
            if (batch + 1) % kept_for == 0:
                container.arrays, container.tensors = None, None  # to_cpu_and_numpy, without the host's copy

    highest, _ = counted(evaluation)
    trace = traced(evaluation=EvalSpec(batches=batches, keep_logits=True, accumulation_steps=kept_for))
    assert trace.logits_bytes == logits
    without = traced(evaluation=EvalSpec(batches=1))
    more = (
        replay(trace, cublas_bytes=0, exact=True).phase_peaks[Phase.EVALUATION]
        - replay(without, cublas_bytes=0, exact=True).phase_peaks[Phase.EVALUATION]
    )
    assert highest == pytest.approx((kept_for - 1 + 1 + kept_for) * logits, rel=0.01)
    assert more >= 0
    held = alive(without, Category.PARAMETERS) + alive(without, Category.BUFFERS) + alive(without, Category.OPTIMIZER_STATE)
    joined = replay(trace, cublas_bytes=0, exact=True).phase_peaks[Phase.EVALUATION] - held
    assert joined == pytest.approx(highest, rel=0.02)
