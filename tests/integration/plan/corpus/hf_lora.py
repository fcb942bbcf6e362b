"""LoRA on a Llama in bf16, lengths grouped; prints the usual line about trainable parameters."""

import torch
from datasets import Dataset
from peft import LoraConfig, TaskType, get_peft_model
from tiny import LLAMA, folder, texts, tokenizer
from transformers import AutoModelForCausalLM, DataCollatorForLanguageModeling, Trainer, TrainingArguments

tok = tokenizer()
model = AutoModelForCausalLM.from_pretrained(folder("llama", LLAMA), dtype=torch.bfloat16, device_map={"": 0})
config = LoraConfig(task_type=TaskType.CAUSAL_LM, r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], lora_dropout=0.05)
model = get_peft_model(model, config)
model.print_trainable_parameters()
data = Dataset.from_dict({"text": texts(80)}).map(lambda r: tok(r["text"]), remove_columns=["text"])
trainer = Trainer(
    model=model,
    args=TrainingArguments("out", per_device_train_batch_size=4, gradient_accumulation_steps=4, bf16=True, num_train_epochs=2),
    train_dataset=data,
    data_collator=DataCollatorForLanguageModeling(tok, mlm=False),
)
trainer.train(resume_from_checkpoint=True)
model.save_pretrained("adapter")
raise SystemExit("the loop must not have run")
