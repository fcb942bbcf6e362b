"""Traces continued from few layers are the whole model's own, event by event; searches then trace few layers."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import msgspec

from trainbudget.plan.layers.depth import deeper, same_trace
from trainbudget.plan.layers.tracer import LayerTracer
from trainbudget.plan.memory import TargetGpu, predict_memory, spec_of, trace_config
from trainbudget.plan.script.protocol import Facts, Job, Question
from trainbudget.plan.script.tracing_process import TracingProcess
from trainbudget.plan.tracing.failure import TraceFailed

pytestmark = pytest.mark.slow
LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "vocab_size": 4096,
}
GPT2 = {"model_type": "gpt2", "n_layer": 8, "n_embd": 256, "n_head": 4}
LORA = {"type": "lora", "r": 8, "target_modules": "all-linear"}
TARGET = TargetGpu()


class Counting:
    """Traces in this process and counts the layers it traced."""

    def __init__(self, config):
        self.config, self.facts = config, Facts(framework="plan", title="", spec={})
        self.layers = []

    def trace(self, spec, target, *, longest=True):
        self.layers.append(spec.layers or 8)
        return trace_config(self.config, spec, target)

    def ahead(self, specs, target):
        """Traced one by one, when they are asked for."""


def spec(**values):
    return spec_of({"micro_batch": 2, "sequence_length": 128, "precision": "bf16", "optimizer": "adamw_torch_fused", **values})


@pytest.mark.parametrize(
    ("config", "values"),
    [
        (LLAMA, {}),
        (LLAMA, {"optimizer": "adamw_torch"}),
        (LLAMA, {"optimizer": "adamw_8bit"}),
        (LLAMA, {"peft": LORA}),
        (LLAMA, {"strategy": "zero2", "world_size": 8}),
        (LLAMA, {"gradient_accumulation": 2}),
        (LLAMA, {"gradient_accumulation": 4, "peft": LORA, "activation_checkpointing": "non_reentrant"}),
        (GPT2, {}),
    ],
    ids=["fused", "foreach", "8bit", "lora", "zero2", "accumulation", "accumulation of lora, checkpointed", "gpt2"],
)
def test_a_continued_trace_is_the_whole_models_own_in_every_phase(config, values):
    wanted = spec(**values)
    trace_config(config, msgspec.structs.replace(wanted, layers=2), TARGET)  # the first trace of a process fills torch's caches
    few, more = (trace_config(config, msgspec.structs.replace(wanted, layers=n), TARGET) for n in (2, 3))
    whole = trace_config(config, wanted, TARGET)
    made = deeper(few, more, 6)
    assert made is not None
    assert same_trace(made, whole)
    made = msgspec.structs.replace(made, spec=wanted)
    assert predict_memory(made, TARGET) == predict_memory(whole, TARGET)


def test_after_one_whole_trace_only_few_layers_are_traced():
    tracer = Counting(LLAMA)
    trace_config(LLAMA, spec(layers=2), TARGET)
    layered = LayerTracer(tracer, LLAMA)
    for batch in (2, 4, 8):
        layered.trace(spec(micro_batch=batch), TARGET)
    assert tracer.layers == [8, 2, 3, 2, 3, 2, 3]


def test_another_kind_of_step_is_proven_on_a_few_layers_more():
    tracer = Counting(LLAMA)
    trace_config(LLAMA, spec(layers=2), TARGET)
    layered = LayerTracer(tracer, LLAMA)
    for wanted in (spec(), spec(optimizer="adamw_8bit"), spec(optimizer="adamw_8bit", micro_batch=8)):
        made = layered.trace(wanted, TARGET)
    assert tracer.layers == [8, 2, 3, 2, 3, 5, 2, 3]
    assert same_trace(made, trace_config(LLAMA, wanted, TARGET))


def test_traces_side_by_side_are_those_of_one_after_the_other():
    wanted = [spec(layers=2), spec(layers=3), spec(layers=3, peft={"type": "nonsense"})]
    with TracingProcess(Job(question=Question(spec=wanted[0], target=TARGET), model_config=LLAMA)) as process:
        process.ahead(wanted, TARGET)
        for one in wanted[:2]:
            assert same_trace(process.trace(one, TARGET), trace_config(LLAMA, one, TARGET))
        with pytest.raises(TraceFailed, match="nonsense"):
            process.trace(wanted[2], TARGET)


def test_a_model_whose_layers_cannot_be_told_alike_is_traced_whole():
    tracer = Counting({**LLAMA, "num_hidden_layers": 8, "per_layer": [0, 0, 0, 0, 0, 0, 0, 1]})
    layered = LayerTracer(tracer, tracer.config)
    for batch in (2, 4):
        layered.trace(spec(micro_batch=batch), TARGET)
    assert tracer.layers == [8, 8]
