"""A Trainer on the CPU whose data set has one long example; ends once the monitor has spoken, or after its patience."""

import sys
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from trainbudget.huggingface import TrainBudgetCallback

directory, memory_gib, wanted, first_step_s = sys.argv[1:5]
LONG, SHORT = 1500, 16


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, i):
        ids = torch.full((LONG if i == 3600 else SHORT,), 7)
        return {"input_ids": ids, "labels": ids}


def pad(rows):
    ids = torch.nn.utils.rnn.pad_sequence([r["input_ids"] for r in rows], batch_first=True)
    return {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)}


class UntilTold(TrainerCallback):
    """Goes slowly: a run of an hour is played in as long as the planner takes."""

    def __init__(self, monitor):
        self.monitor, self.until_s = monitor, time.monotonic() + 240.0

    def _told(self):
        report = self.monitor.report
        return report is not None and any(f.code == wanted for f in report.findings)

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 0:
            until_s = min(self.until_s, time.monotonic() + float(first_step_s))
            while time.monotonic() < until_s and not self._told():
                time.sleep(0.1)

    def on_step_end(self, args, state, control, **kwargs):
        time.sleep(0.1)
        control.should_training_stop = self._told() or time.monotonic() > self.until_s


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
