"""Levers on the arithmetic: precision, kernels, compilation."""

from __future__ import annotations

from trainbudget.catalog.levers.lever import Lever, argument, code, environment, trainer

COMPUTE = (
    Lever(
        id="L12",
        name="mixed_precision",
        changes="Matrices in bf16 (fp16 on older cards), weights in fp32.",
        settings={
            "huggingface": (
                argument("bf16", "{name}={with_bf16}", done=(True,), costs="check the loss"),
                argument("fp16", "{name}={with_fp16}", done=(True,)),
            ),
            "lightning": (trainer("precision", 'Trainer({name}="{half}-mixed")'),),
            "loop": (code('torch.autocast("cuda", dtype=torch.{half_dtype}) around forward and loss'),),
        },
        buckets=("compute",),
        share=0.58,
        bound="T5-base on an A100: fp32 93.7 samples a second, bf16 224.1; over TF32 (210.5) only 1.06x.",
        precondition="fp32 without autocast on a card of compute capability 8.0 (bf16) or 7.0 (fp16).",
        side_effect="fp16 skips steps while the loss scaler searches",
        verify="Samples a second; the loss is no worse.",
        source="huggingface/transformers#15026",
    ),
    Lever(
        id="L13",
        name="tf32",
        changes="fp32 matrices multiplied in TF32.",
        settings={
            "huggingface": (argument("tf32", "{name}=True", done=(True,)),),
            "lightning": (code('torch.set_float32_matmul_precision("high")'),),
            "loop": (code('torch.set_float32_matmul_precision("high")'),),
        },
        buckets=("compute",),
        share=0.56,
        bound="T5-base on an A100: fp32 93.7 samples a second, TF32 210.5.",
        precondition="fp32 matrices on compute capability 8.0 or newer.",
        side_effect="10-bit mantissa in matrix products",
        verify="Samples a second; the loss.",
        source="huggingface/transformers#15026",
    ),
    Lever(
        id="L15",
        name="compile",
        changes="torch.compile fuses short kernels and spares launches.",
        settings={
            "huggingface": (argument("torch_compile", "{name}=True", done=(True,)),),
            "lightning": (code("module = torch.compile(module)"),),
            "loop": (code("model = torch.compile(model)"),),
        },
        buckets=("compute", "host_gap"),
        share=0.50,
        bound="20-50 % by the library's own claim; model dependent.",
        precondition="Many short kernels, constant shapes, and enough steps left to repay minutes of compilation.",
        side_effect="minutes of warm-up; recompiles with changing shapes",
        verify="The step after warm-up; net = gain x steps left - compilation.",
        source="PyTorch torch.compile documentation",
    ),
    Lever(
        id="L16",
        name="fused_attention",
        changes="Attention that never writes its score matrix to memory.",
        settings={name: (code('from_pretrained(..., attn_implementation="sdpa")'),) for name in ("huggingface", "lightning")}
        | {"loop": (code("torch.nn.functional.scaled_dot_product_attention"),)},
        buckets=("compute",),
        bound="Attention memory 10x less at 2,000 tokens, 20x at 4,000; eager to SDPA at 512 tokens: 299 to 235 MiB (measured).",
        precondition="Eager attention at 512 tokens or more.",
        side_effect="attention weights cannot be returned",
        verify="The peak at equal length; the step.",
        source="FlashAttention README; own measurement",
    ),
    Lever(
        id="L17",
        name="fused_loss",
        changes="The loss without writing out logits of tokens x vocabulary.",
        settings={
            "huggingface": (argument("use_liger_kernel", "{name}=True", done=(True,)),),
            "lightning": (code("liger_kernel.transformers.apply_liger_kernel_to_<model>() before the model is built"),),
            "loop": (code("liger_kernel.transformers.apply_liger_kernel_to_<model>() before the model is built"),),
        },
        buckets=("compute",),
        share=0.20,
        bound="About 20 % more throughput and 60 % less memory by the library's own claim.",
        precondition="A model family that Liger knows, a large vocabulary.",
        side_effect="training returns no logits; needs the liger-kernel package",
        verify="The peak; the step.",
        source="TrainingArguments documentation (use_liger_kernel)",
    ),
    Lever(
        id="L18",
        name="fused_optimizer",
        changes="One kernel for all parameters of the optimizer step.",
        settings={
            "huggingface": (
                argument("optim", '{name}="adamw_torch_fused"', choice="adamw_torch_fused", done=("adamw_torch_fused",)),
            ),
            "lightning": (code("torch.optim.AdamW(..., fused=True) in configure_optimizers"),),
            "loop": (code("torch.optim.AdamW(..., fused=True)"),),
        },
        buckets=("compute",),
        bound="The optimizer alone 2.75x; a whole run about 3 %.",
        precondition="The optimizer takes 10 % or more of the step.",
        side_effect="none known",
        verify="Seconds in the optimizer phase.",
        source="deepmd-kit#4463; pytorch/torchtitan#355",
    ),
    Lever(
        id="L27",
        name="cooling",
        changes="Better cooling, or the power limit the card is made for.",
        settings=dict.fromkeys(("huggingface", "lightning", "loop"), ()),  # nothing in a script cools a card
        buckets=("compute",),
        bound="The clock's ratio is the share that is lost.",
        precondition="Clock-event reasons name heat or power.",
        side_effect="none",
        verify="SM clock and step time come back.",
        source="NVIDIA NVML API reference, clocks event reasons",
    ),
    Lever(
        id="L45",
        name="gc_off",
        changes="Python's garbage collector at a time of our choosing.",
        settings={
            name: (code("gc.freeze() before training and gc.collect() every few hundred steps"),)
            for name in ("huggingface", "lightning", "loop")
        },
        buckets=("host_gap",),
        share=1.0,
        bound="All of the pauses.",
        precondition="Collections that stop the training thread.",
        side_effect="reference cycles live longer",
        verify="Seconds in collections.",
        source="Python gc documentation; PyTorch TorchTitan gc_freq",
    ),
    Lever(
        id="L46",
        name="constant_shapes",
        changes="Shapes that do not change need no new compilation.",
        settings={
            "huggingface": (
                argument("dataloader_drop_last", "{name}=True", done=(True,)),
                code("DataCollatorWithPadding(pad_to_multiple_of=64)"),
            ),
            "lightning": (code("DataLoader(drop_last=True) and padding to a multiple of 64"),),
            "loop": (code("DataLoader(drop_last=True) and torch.compile(dynamic=True)"),),
        },
        buckets=("warmup",),
        share=1.0,
        bound="All of the recompilation.",
        precondition="A compiled model that meets new shapes.",
        side_effect="the last incomplete batch is left out",
        verify="Recompiles after warm-up.",
        source="PyTorch torch.compile documentation, dynamic shapes",
    ),
    Lever(
        id="L47",
        name="driver_reset",
        changes="A device that the driver has lost needs a reset or another node.",
        settings={
            name: (environment("nvidia-smi -r on the drained node, or a reboot"),)
            for name in ("huggingface", "lightning", "loop")
        },
        buckets=("stall",),
        share=1.0,
        bound="All of the standstill.",
        precondition="NVML code 15, 16 or 28, or an Xid that asks for it.",
        side_effect="everything on the device ends",
        verify="The device answers again.",
        source="NVIDIA Xid catalogue",
    ),
)
