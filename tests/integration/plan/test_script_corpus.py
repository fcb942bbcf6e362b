"""Scripts written like the frameworks' public examples, run unmodified up to their training loop and traced.

Each is its own process (import of torch and a framework: some seconds), so the whole file is slow.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from trainbudget.errors import ConfigError, TrainBudgetError
from trainbudget.plan.memory import TargetGpu, TrainSpec, predict_memory, spec_of
from trainbudget.plan.script.tracing_process import Job, OwnLoop, Question, ScriptRefused, TracingProcess

pytestmark = pytest.mark.slow
CORPUS = Path(__file__).parent / "corpus"
A100 = TargetGpu()

#: script -> needs these packages beside torch and transformers, and what its facts must say.
TRACED = {
    "hf_causal_lm.py": (
        [],
        {"micro_batch": 4, "sequence_length": 128, "gradient_accumulation": 2, "optimizer": "adamw_torch_fused"},
    ),
    "hf_text_classification.py": (["datasets"], {"micro_batch": 8, "precision": "fp32", "pad": False}),
    "hf_masked_lm.py": (["datasets"], {"precision": "fp16", "activation_checkpointing": "non_reentrant"}),
    "hf_seq2seq.py": (["datasets"], {"optimizer": "adafactor", "precision": "bf16"}),
    "hf_token_classification.py": (["datasets"], {"micro_batch": 16}),
    "hf_question_answering.py": ([], {"sequence_length": 96, "precision": "bf16"}),
    "hf_lora.py": (["datasets", "peft"], {"peft": {"type": "lora", "r": 8}, "gradient_accumulation": 4}),
    "hf_qlora.py": (["datasets", "peft"], {"quantization": "nf4_double", "optimizer": "paged_adamw_8bit"}),
    "hf_custom_trainer.py": ([], {"max_grad_norm": 0.0}),
    "hf_vision.py": (["datasets"], {"task": "image_classification", "micro_batch": 8}),
    "hf_fsdp.py": ([], {"strategy": "fsdp", "world_size": 4}),
    "trl_sft.py": (["trl"], {"peft": {"type": "lora", "r": 8}, "precision": "bf16"}),
    "trl_dpo.py": (["trl"], {"precision": "bf16"}),
    "trl_reward.py": (["trl"], {"precision": "bf16"}),
    "lightning_classifier.py": (["lightning"], {"micro_batch": 16, "precision": "fp16", "strategy": "ddp", "world_size": 2}),
    "lightning_transformer.py": (["lightning"], {"gradient_accumulation": 4, "precision": "bf16"}),
}
REFUSED = {
    "lightning_gan.py": (["lightning"], ScriptRefused, "manual optimization"),
    "trl_grpo.py": (["trl"], ScriptRefused, "GRPOTrainer generates while it trains"),
    "own_loop.py": ([], OwnLoop, "a training loop of its own"),
    "accelerate_loop.py": (["accelerate"], OwnLoop, "a training loop of its own"),
    "uncached.py": ([], ConfigError, "configuration of some-lab/some-model-7b is not on this machine .*run `hf download"),
}


def process(name: str, *arguments: str, **options) -> TracingProcess:
    question = Question(spec=options.pop("spec", TrainSpec()), target=A100)
    return TracingProcess(Job(question=question, script=str(CORPUS / name), arguments=list(arguments), **options))


def test_the_corpus_is_covered():
    scripts = {p.name for p in CORPUS.glob("*.py")} - {"tiny.py"}
    assert scripts == {*TRACED, *REFUSED}
    assert len(TRACED) >= 15


@pytest.mark.parametrize("name", TRACED)
def test_traced(name, monkeypatch):
    needs, wanted = TRACED[name]
    for package in needs:
        pytest.importorskip(package)
    if name == "hf_fsdp.py":  # as torchrun starts it
        for key, value in {
            "WORLD_SIZE": "4",
            "RANK": "0",
            "LOCAL_RANK": "0",
            "MASTER_ADDR": "nowhere",
            "MASTER_PORT": "1",
        }.items():
            monkeypatch.setenv(key, value)
    with process(name) as child:
        spec = spec_of({k: v for k, v in child.facts.spec.items() if v is not None})
        trace = child.trace(spec, A100)
    told = {key: getattr(spec, key) for key in wanted}
    assert told == wanted
    assert trace.parameter_elements > 3_000
    assert any(p.graded for p in trace.parameters if p.trainable)
    memory = predict_memory(trace, A100)
    assert memory.fits
    assert memory.categories["parameters"] > 0
    assert child.facts.steps is not None


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_one_line(name):
    needs, kind, message = REFUSED[name]
    for package in needs:
        pytest.importorskip(package)
    with pytest.raises(kind, match=message) as caught:
        process(name).close()
    assert "\n" not in str(caught.value)
    assert issubclass(kind, TrainBudgetError)


def test_a_references_model_beside_the_trained_one_is_counted():
    pytest.importorskip("trl")
    with process("trl_dpo.py") as child:
        trace = child.trace(spec_of({k: v for k, v in child.facts.spec.items() if v is not None}), A100)
    # The policy and its frozen reference: the same number of parameters twice.
    assert trace.parameter_elements == 2 * trace.trainable_elements


def test_arguments_reach_the_script_and_shapes_can_be_changed_afterwards():
    with process("hf_causal_lm.py", "--batch", "2", "--block", "64", "--bf16") as child:
        spec = spec_of({k: v for k, v in child.facts.spec.items() if v is not None})
        assert (spec.micro_batch, spec.sequence_length, spec.precision) == (2, 64, "bf16")
        small = predict_memory(child.trace(spec, A100), A100)
        large = predict_memory(child.trace(spec.with_shape(micro_batch=64, sequence_length=256), A100), A100)
        checked = spec_of(
            {
                **{k: v for k, v in child.facts.spec.items() if v is not None},
                "activation_checkpointing": "non_reentrant",
                "micro_batch": 64,
            }
        )
        less = predict_memory(child.trace(checked, A100), A100)
        same = predict_memory(child.trace(spec.with_shape(micro_batch=64), A100), A100)
    assert large.categories["activations"] > 20 * small.categories["activations"]
    assert less.categories["activations"] < same.categories["activations"]


def test_the_longest_batch_is_found_and_traced():
    pytest.importorskip("datasets")
    with process("hf_lora.py") as child:
        facts = child.facts
    assert facts.long_batches[0][1] == max(t for _, t in facts.long_batches)
    assert facts.spec["sequence_length"] == 23  # the longest text of the data set
    assert 0.3 < facts.token_ratio < 1.0


FOR_THE_CPU = """
import sys, torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
config = LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=1000)
rows = [{"input_ids": torch.ones(64, dtype=torch.long), "labels": torch.ones(64, dtype=torch.long)}] * 8
args = TrainingArguments("out", per_device_train_batch_size=2, max_steps=7, **{sys.argv[1]: True} if len(sys.argv) > 1 else {})
Trainer(model=LlamaForCausalLM(config), args=args, train_dataset=rows).train()
"""


def test_a_script_for_the_cpu_is_planned_for_the_card_and_told_so(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(FOR_THE_CPU)
    found = []
    for arguments in ([], ["use_cpu"]):
        job = Job(question=Question(spec=TrainSpec(), target=A100), script=str(script), arguments=arguments)
        with TracingProcess(job) as child:
            spec = spec_of({k: v for k, v in child.facts.spec.items() if v is not None})
            found.append((predict_memory(child.trace(spec, A100), A100), child.facts.notes))
    (on_the_card, nothing_said), (on_the_cpu, notes) = found
    assert on_the_cpu == on_the_card
    assert nothing_said == []
    assert notes == ["the script trains on another device (use_cpu=True): planned as if it trained on the GPU"]


LENGTHS_IN_LIGHTNING = """
import sys
import lightning.pytorch as pl, torch
from torch.utils.data import DataLoader
rows = [{"input_ids": torch.ones(900 if i == 40 else 16, dtype=torch.long)} for i in range(64)]
def pad(rows): return {"input_ids": torch.nn.utils.rnn.pad_sequence([r["input_ids"] for r in rows], batch_first=True)}
class Words(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.words, self.head = torch.nn.Embedding(5000, 64), torch.nn.Linear(64, 5000)
    def training_step(self, batch, index):
        ids = batch["input_ids"]
        return torch.nn.functional.cross_entropy(self.head(self.words(ids)).flatten(0, 1), ids.flatten())
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())
trainer = pl.Trainer(accelerator="cpu", max_epochs=1, accumulate_grad_batches=2)
trainer.fit(Words(), DataLoader(rows, batch_size=2, collate_fn=pad, shuffle=len(sys.argv) > 1))
"""


def test_the_longest_batch_of_a_lightning_script_is_found_and_traced(tmp_path):
    pytest.importorskip("lightning")
    script = tmp_path / "train.py"
    script.write_text(LENGTHS_IN_LIGHTNING)
    with TracingProcess(Job(question=Question(spec=TrainSpec(), target=A100), script=str(script))) as child:
        facts = child.facts
        spec = spec_of({k: v for k, v in facts.spec.items() if v is not None})
        longest, first = (predict_memory(child.trace(spec, A100, longest=which), A100) for which in (True, False))
    assert facts.long_batches[0] == (11, 1800)  # the 21st micro-batch, two to a step
    assert (facts.first_batch, spec.micro_batch, spec.sequence_length) == ((2, 16), 2, 900)
    assert longest.reserved.value > 3 * first.reserved.value
    assert any("accelerator='cpu'" in note for note in facts.notes)
    with TracingProcess(
        Job(question=Question(spec=TrainSpec(), target=A100), script=str(script), arguments=["shuffled"])
    ) as child:
        assert child.facts.long_batches == [(None, 1800)]


def test_ranks_share_the_data_set():
    with process("hf_causal_lm.py", spec=TrainSpec(world_size=4, strategy="ddp")) as child:
        facts = child.facts
    assert (facts.spec["world_size"], facts.spec["strategy"]) == (4, "ddp")
    assert facts.steps == 3 * 2  # 64 examples, batch 4, 4 ranks, 2 accumulated, 3 epochs


def test_max_examples_limits_what_is_tokenised_and_says_so():
    pytest.importorskip("datasets")
    with process("hf_text_classification.py", max_examples=16) as child:
        facts = child.facts
    assert any("16 examples" in note for note in facts.notes)
    assert facts.steps == 2 * 5  # of all 36 training examples, not of the dozen that were kept


def test_a_script_that_fails_before_training_is_one_line(tmp_path):
    script = tmp_path / "broken.py"
    script.write_text("import torch\n\nvalue = {}['missing']\n")
    with pytest.raises(ConfigError, match=r"raised KeyError before it trained \(line 3\): 'missing'"):
        TracingProcess(Job(question=Question(spec=TrainSpec(), target=A100), script=str(script)))


def test_a_script_that_exits_before_training_is_one_line(tmp_path):
    script = tmp_path / "exits.py"
    script.write_text("import sys\nsys.exit('nothing to do')\n")
    with pytest.raises(ConfigError, match=r"called sys.exit\('nothing to do'\) before it trained"):
        TracingProcess(Job(question=Question(spec=TrainSpec(), target=A100), script=str(script)))


def test_a_model_of_billions_takes_no_memory_and_arguments_come_from_the_command_line(tmp_path):
    script = tmp_path / "run_big.py"
    script.write_text(
        "import torch\n"
        "from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments\n"
        "(args,) = HfArgumentParser((TrainingArguments,)).parse_args_into_dataclasses()\n"
        "model = LlamaForCausalLM(LlamaConfig())\n"  # 6.7 billion parameters: 27 GB in fp32
        "rows = [{'input_ids': torch.zeros(64, dtype=torch.long), 'labels': torch.zeros(64, dtype=torch.long)}] * 8\n"
        "Trainer(model=model, args=args, train_dataset=rows).train()\n"
    )
    arguments = ["--output_dir", "/nonexistent/out", "--bf16", "--per_device_train_batch_size", "1", "--max_steps", "7"]
    with TracingProcess(Job(question=Question(spec=TrainSpec(), target=A100), script=str(script), arguments=arguments)) as child:
        facts = child.facts
        peak_bytes = 1024 * int(
            next(
                line.split()[1] for line in Path(f"/proc/{child.pid}/status").read_text().splitlines() if line.startswith("VmHWM")
            )
        )
    assert (facts.steps, facts.spec["precision"], facts.spec["micro_batch"]) == (7, "bf16", 1)
    assert peak_bytes < 3 * 1024**3
