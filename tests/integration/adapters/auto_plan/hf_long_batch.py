"""A Trainer on the CPU whose data set has one long example; ends once the monitor has spoken, or after its patience."""

import sys
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from trainbudget.huggingface import TrainBudgetCallback

#: Where the record goes; memory of the mock card; the finding that is waited for, before the first step or while steps go on;
#: whether the run ends then; examples, and which of them is long.
directory, memory_gib, wanted, when, ends, count, place = sys.argv[1:]
PATIENCE_S = 500.0
LONG, SHORT = 1500, 16


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return int(count)

    def __getitem__(self, i):
        ids = torch.full((LONG if i == int(place) else SHORT,), 7)
        return {"input_ids": ids, "labels": ids}


def pad(rows):
    ids = torch.nn.utils.rnn.pad_sequence([r["input_ids"] for r in rows], batch_first=True)
    return {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)}


class UntilTold(TrainerCallback):
    """Goes slowly: a run of an hour is played in as long as the planner takes."""

    def __init__(self, monitor):
        self.monitor, self.until_s = monitor, time.monotonic() + PATIENCE_S

    def _told(self):
        report = self.monitor.report
        return report is not None and any(f.code == wanted for f in report.findings)

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 0:
            while when == "before" and time.monotonic() < self.until_s and not self._told():
                time.sleep(0.1)

    def on_step_end(self, args, state, control, **kwargs):
        time.sleep(0.1 if ends == "yes" else 0.0)
        control.should_training_stop = time.monotonic() > self.until_s or (ends == "yes" and self._told())


torch.manual_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=8000)
)
callback = TrainBudgetCallback(
    plan="auto", backend=f"mock:healthy:{memory_gib}", run_directory=directory, listen="off", interval=0.1, sample_period=0.2
)
arguments = TrainingArguments(
    directory + "/out", use_cpu=True, per_device_train_batch_size=2, num_train_epochs=1, report_to="none", save_strategy="no"
)
trainer = Trainer(
    model=model, args=arguments, train_dataset=Rows(), data_collator=pad, callbacks=[callback, UntilTold(callback.monitor)]
)
with open(directory + ".started", "a") as file:
    file.write("once\n")
trainer.train()
callback.monitor.close()
