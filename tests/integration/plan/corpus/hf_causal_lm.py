"""Trains a small GPT-2 from scratch on text blocks with the Trainer."""

import argparse

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--block", type=int, default=128)
parser.add_argument("--bf16", action="store_true")
options = parser.parse_args()


class Blocks(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        ids = torch.randint(0, 1000, (options.block,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids.clone()}


if __name__ == "__main__":
    model = GPT2LMHeadModel(GPT2Config(vocab_size=1000, n_positions=256, n_embd=64, n_layer=2, n_head=4))
    arguments = TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=options.batch,
        gradient_accumulation_steps=2,
        num_train_epochs=3,
        bf16=options.bf16,
        tf32=True,
        logging_steps=1,
        save_steps=4,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=Blocks())
    trainer.train()
    raise SystemExit("the loop must not have run")
