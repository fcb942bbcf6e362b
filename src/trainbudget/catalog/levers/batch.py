"""Levers on the batch and the GPU's memory."""

from __future__ import annotations

from trainbudget.catalog.levers.lever import Lever, argument, code, environment, trainer

BATCH = (
    Lever(
        id="L08",
        name="larger_micro_batch",
        changes="More samples a micro-batch, fewer accumulated: the same effective batch in fewer, larger kernels.",
        settings={
            "huggingface": (
                argument("per_device_train_batch_size", "{name}={micro_double}, gradient_accumulation_steps={accumulation_half}"),
                argument("per_device_train_batch_size", "{name}={micro_double}"),
            ),
            "lightning": (
                trainer("accumulate_grad_batches", "DataLoader(batch_size=2x), Trainer({name}={accumulation_half})"),
                code(
                    "a larger DataLoader(batch_size=...), lightning.pytorch.tuner.Tuner(trainer).scale_batch_size(model) finds it"
                ),
            ),
            "loop": (code("a larger DataLoader(batch_size=...), fewer accumulation steps"),),
        },
        buckets=("compute",),
        bound="Published for T5-base on an A100: 7.8 samples a second at batch 1, 116 at 16, 225 at 32.",
        precondition="Memory is free for it.",
        side_effect="out of memory if too large; batch statistics change",
        verify="Samples a second at the same effective batch; the peak below 90 %.",
        source="huggingface/transformers#15026, #14608",
    ),
    Lever(
        id="L09",
        name="accumulate",
        changes="Smaller micro-batches, more of them a step: the same effective batch in less memory.",
        settings={
            "huggingface": (
                argument("gradient_accumulation_steps", "per_device_train_batch_size={micro_half}, {name}={accumulation_double}"),
                argument("gradient_accumulation_steps", "{name}={accumulation_double}, half the per_device_train_batch_size"),
            ),
            "lightning": (trainer("accumulate_grad_batches", "Trainer({name}={accumulation_double}), half the batch_size"),),
            "loop": (code("half the batch_size, twice the accumulation steps"),),
        },
        buckets=("lost",),
        bound="Activations are linear in the micro-batch: 470, 235, 118, 59 MiB at 8, 4, 2, 1 (measured). Time at equal samples: "
        "-4 % to +12 %.",
        precondition="The micro-batch is larger than 1.",
        side_effect="smaller kernels; up to 12 % slower",
        verify="The peak falls; samples a second within 15 %.",
        source="own measurement; huggingface/transformers#15026",
    ),
    Lever(
        id="L10",
        name="recompute_on",
        changes="Recompute activations in the backward pass instead of keeping them.",
        settings={
            "huggingface": (argument(("activation_checkpointing", "gradient_checkpointing"), "{name}=True", done=(True,)),),
            "lightning": (
                code("model.gradient_checkpointing_enable() in configure_model (FSDP: activation_checkpointing_policy)"),
            ),
            "loop": (code("model.gradient_checkpointing_enable(), or torch.utils.checkpoint.checkpoint around the layers"),),
        },
        buckets=("lost",),
        bound="Kept for backward: 235 to 76 MiB (-67 %, measured); steps about 20 % longer (TrainingArguments).",
        precondition="Activations are a large part of the peak.",
        side_effect="steps about 20 % longer",
        verify="The peak falls; the step grows by no more than 35 %.",
        source="TrainingArguments documentation; own measurement",
    ),
    Lever(
        id="L11",
        name="recompute_off",
        changes="Keep activations: no second forward pass.",
        settings={
            "huggingface": (
                argument(("activation_checkpointing", "gradient_checkpointing"), "{name}=False", done=(False, None)),
            ),
            "lightning": (code("training without the checkpointing policy or the enable call"),),
            "loop": (code("training without the checkpointing call"),),
        },
        buckets=("compute",),
        share=0.20,
        bound="About 20 % of the step: what checkpointing is documented to cost.",
        precondition="The peak without it fits.",
        side_effect="memory rises to the estimate in the finding",
        verify="The step gets 15-25 % shorter; the peak stays below 90 %.",
        source="TrainingArguments documentation",
    ),
    Lever(
        id="L19",
        name="eight_bit_optimizer",
        changes="Optimizer state in 8 bits.",
        settings={
            "huggingface": (
                argument("optim", '{name}="adamw_bnb_8bit"', choice="adamw_bnb_8bit", done=("adamw_bnb_8bit", "adamw_8bit")),
                argument("optim", '{name}="adamw_torch_8bit"', choice="adamw_torch_8bit", done=("adamw_torch_8bit",)),
            ),
            "lightning": (code("bitsandbytes.optim.AdamW8bit in configure_optimizers"),),
            "loop": (code("bitsandbytes.optim.AdamW8bit"),),
        },
        buckets=("lost",),
        bound="8 to 2 bytes a parameter: 75 % of the optimizer's state.",
        precondition="The state is a quarter or more of memory.",
        side_effect="small tensors stay fp32; watch the loss",
        verify="Bytes of optimizer state; the peak.",
        source="bitsandbytes documentation; Hugging Face performance documentation",
    ),
    Lever(
        id="L20",
        name="light_optimizer",
        changes="An optimizer with little state.",
        settings={
            "huggingface": (argument("optim", '{name}="adafactor"', choice="adafactor", done=("adafactor",)),),
            "lightning": (code("transformers.Adafactor in configure_optimizers"),),
            "loop": (code("an optimizer with factored state (Adafactor)"),),
        },
        buckets=("lost",),
        bound="Adafactor's state 0.15 MiB where AdamW's is 55.4 MiB (27.7 MiB of parameters, measured).",
        precondition="8-bit state is not possible.",
        side_effect="converges differently; slower (89 for 113 samples a second on an RTX 3090)",
        verify="Bytes of optimizer state; the loss.",
        source="own measurement; huggingface/transformers#14744",
    ),
    Lever(
        id="L21",
        name="lora",
        changes="Train small adapters instead of all weights.",
        settings={
            "huggingface": (code("peft.get_peft_model(model, peft.LoraConfig(r=16))"),),
            "lightning": (code("peft.get_peft_model(model, peft.LoraConfig(r=16)) in configure_model"),),
            "loop": (code("peft.get_peft_model(model, peft.LoraConfig(r=16))"),),
        },
        buckets=("lost",),
        bound="3x less GPU memory (GPT-3, LoRA paper); activations hardly shrink (-22 % measured).",
        precondition="Fine-tuning of a loaded checkpoint.",
        side_effect="quality depends on the rank",
        verify="The peak; the evaluation metric.",
        source="arXiv 2106.09685; own measurement",
    ),
    Lever(
        id="L22",
        name="shard",
        changes="Weights, gradients and optimizer state spread over the GPUs.",
        settings={
            "huggingface": (
                argument("fsdp", "{name}=True, fsdp_config={{...}}", done=(True,)),
                argument("deepspeed", '{name}="ds_config.json" (zero_optimization.stage 2)'),
            ),
            "lightning": (trainer("strategy", 'Trainer({name}="fsdp")', done=("fsdp",)),),
            "loop": (code("torch.distributed.fsdp.fully_shard(model)"),),
        },
        buckets=("lost",),
        bound="State by 4x (ZeRO stage 1), 8x (2), the number of GPUs (3); traffic as in DDP for 1 and 2, +50 % for 3.",
        precondition="Several GPUs that each hold a full copy.",
        side_effect="communication; another checkpoint format",
        verify="The peak of each rank; communication.",
        source="arXiv 1910.02054",
    ),
    Lever(
        id="L23",
        name="offload_off",
        changes="Keep states on the GPU instead of in host memory.",
        settings={
            "huggingface": (
                argument("deepspeed", "{name} without offload_optimizer and offload_param in zero_optimization"),
                argument("fsdp_config", '{name}={{"cpu_offload": False}}'),
            ),
            "lightning": (trainer("strategy", 'Trainer({name}="deepspeed_stage_2") without offload'),),
            "loop": (code("training without cpu_offload"),),
        },
        buckets=("optimizer_offload", "host_gap"),
        share=1.0,
        bound="All of the time in which the GPU waits for the optimizer on the CPU.",
        precondition="The states fit on the GPU.",
        side_effect="memory rises by the offloaded bytes",
        verify="GPU idle time in the optimizer phase.",
        source="DeepSpeed ZeRO-Offload documentation",
    ),
    Lever(
        id="L28",
        name="expandable_segments",
        changes="The allocator grows its segments in place: hardly any fragmentation.",
        settings={
            name: (environment("PYTORCH_ALLOC_CONF=expandable_segments:True (before torch 2.9: PYTORCH_CUDA_ALLOC_CONF)"),)
            for name in ("huggingface", "lightning", "loop")
        },
        buckets=("lost",),
        bound="The gap between reserved and allocated memory.",
        precondition="Fragmentation: reserved far above allocated, or retries.",
        side_effect="not on Windows",
        verify="Reserved minus allocated; allocator retries.",
        source="PyTorch CUDA memory management notes",
    ),
    Lever(
        id="L29",
        name="memory_cap",
        changes="A cap for this process, so that several share a GPU in peace.",
        settings={
            name: (code("torch.cuda.set_per_process_memory_fraction({fraction})"),)
            for name in ("huggingface", "lightning", "loop")
        },
        buckets=("lost",),
        bound="Saves nothing itself; the out-of-memory error is then one's own.",
        precondition="Several processes share the GPU.",
        side_effect="an earlier out-of-memory error",
        verify="Memory of each process.",
        source="PyTorch CUDA memory management notes",
    ),
    Lever(
        id="L39",
        name="find_batch_size",
        changes="Let the framework find the largest batch that fits.",
        settings={
            "huggingface": (argument("auto_find_batch_size", "{name}=True", done=(True,)),),
            "lightning": (code('lightning.pytorch.tuner.Tuner(trainer).scale_batch_size(model, mode="binsearch")'),),
            "loop": (code("accelerate.utils.find_executable_batch_size"),),
        },
        buckets=("lost",),
        bound="None itself; it avoids failed runs.",
        precondition="Not with ZeRO-3; the evaluation batch is not adjusted.",
        side_effect="each failed trial starts over",
        verify="Restarts; the batch size found.",
        source="TrainingArguments documentation; Lightning batch size finder",
    ),
)
