"""QLoRA: 4-bit base weights, adapters on every linear layer, a paged 8-bit optimizer."""

import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from tiny import LLAMA, folder, texts, tokenizer
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, DataCollatorForLanguageModeling, Trainer, TrainingArguments

tok = tokenizer()
quantization = BitsAndBytesConfig(
    load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.bfloat16
)
model = AutoModelForCausalLM.from_pretrained(folder("llama", LLAMA), quantization_config=quantization, device_map="auto")
model.config.use_cache = False
model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=True)
model = get_peft_model(model, LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM"))
data = Dataset.from_dict({"text": texts()}).map(lambda r: tok(r["text"]), remove_columns=["text"])
Trainer(
    model=model,
    args=TrainingArguments(
        "out", per_device_train_batch_size=2, bf16=True, optim="paged_adamw_8bit", max_steps=100, max_grad_norm=0.3
    ),
    train_dataset=data,
    data_collator=DataCollatorForLanguageModeling(tok, mlm=False),
).train()
raise SystemExit("the loop must not have run")
