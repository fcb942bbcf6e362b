"""Named-entity tagging: labels a word, -100 on what is not scored."""

from datasets import Dataset
from tiny import BERT, folder, texts, tokenizer
from transformers import (
    AutoConfig,
    AutoModelForTokenClassification,
    DataCollatorForTokenClassification,
    Trainer,
    TrainingArguments,
)

tok = tokenizer()


def encode(row):
    out = tok(row["tokens"], is_split_into_words=True)
    out["labels"] = [-100 if w is None else w % 5 for w in out.word_ids()]
    return out


data = Dataset.from_dict({"tokens": [t.split() for t in texts()]}).map(encode, remove_columns=["tokens"])
config = AutoConfig.from_pretrained(folder("bert", BERT), num_labels=5)
model = AutoModelForTokenClassification.from_pretrained(folder("bert", BERT), config=config).cuda()
Trainer(
    model,
    TrainingArguments("out", per_device_train_batch_size=16, max_steps=20, push_to_hub=True, hub_model_id="nobody/nothing"),
    DataCollatorForTokenClassification(tok),
    data,
).train()
raise SystemExit("the loop must not have run")
