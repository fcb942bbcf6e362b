"""Fine-tunes a T5 for summarisation-like pairs with the sequence-to-sequence trainer and Adafactor."""

import sys

from datasets import Dataset
from tiny import T5, folder, texts, tokenizer
from transformers import AutoModelForSeq2SeqLM, DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments


def main():
    tok = tokenizer()
    pairs = Dataset.from_dict({"long": texts(), "short": [t[:20] for t in texts()]})

    def encode(rows):
        out = tok(rows["long"], max_length=32, truncation=True)
        out["labels"] = tok(text_target=rows["short"], max_length=16, truncation=True)["input_ids"]
        return out

    model = AutoModelForSeq2SeqLM.from_pretrained(folder("t5", T5))
    model.resize_token_embeddings(1008)
    arguments = Seq2SeqTrainingArguments(
        "out", per_device_train_batch_size=8, optim="adafactor", predict_with_generate=True, num_train_epochs=1, bf16=True
    )
    trainer = Seq2SeqTrainer(
        model=model,
        args=arguments,
        train_dataset=pairs.map(encode, batched=True, remove_columns=["long", "short"]),
        data_collator=DataCollatorForSeq2Seq(tok, model=model),
    )
    trainer.train()
    return "the loop must not have run"


if __name__ == "__main__":
    sys.exit(main())
