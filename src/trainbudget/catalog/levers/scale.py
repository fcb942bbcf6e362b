"""Levers on many GPUs and on what lies between steps: evaluation, saving, logging, stopping."""

from __future__ import annotations

from trainbudget.catalog.levers.lever import Lever, argument, code, environment, trainer

#: Findings of GPUs that are held after the end of training.
HELD = ("finished_holding_gpu", "notebook_idle")

SCALE = (
    Lever(
        id="L24",
        name="overlap_communication",
        changes="Let gradients travel while the backward pass still computes.",
        settings={
            "huggingface": (
                argument("ddp_find_unused_parameters", "{name}=False", done=(False,)),
                argument("ddp_static_graph", "{name}=True", done=(True,)),
                argument("ddp_bucket_cap_mb", "{name}=100"),
            ),
            "lightning": (code("DDPStrategy(gradient_as_bucket_view=True, static_graph=True, find_unused_parameters=False)"),),
            "loop": (code("DistributedDataParallel(..., gradient_as_bucket_view=True, static_graph=True)"),),
        },
        buckets=("communication", "compute"),
        bound="The exposed communication.",
        precondition="DDP; every parameter gets a gradient.",
        side_effect="static_graph needs a graph that does not change",
        verify="Exposed communication; step on N GPUs over step on one.",
        source="PyTorch DDP documentation; own measurement of bucket times",
    ),
    Lever(
        id="L25",
        name="compress_gradients",
        changes="Gradients in 16 bits on the wire.",
        settings={
            "huggingface": (code("accelerate.DistributedDataParallelKwargs(comm_hook=DDPCommunicationHookType.BF16)"),),
            "lightning": (code("DDPStrategy(ddp_comm_hook=default_hooks.bf16_compress_hook)"),),
            "loop": (code("model.register_comm_hook(None, default_hooks.bf16_compress_hook)"),),
        },
        buckets=("communication",),
        share=0.50,
        bound="Half of the bytes.",
        precondition="Slow links between nodes; NCCL 2.9.6 or newer for bf16.",
        side_effect="numbers change",
        verify="Exposed communication; the loss.",
        source="PyTorch DDP communication hooks",
    ),
    Lever(
        id="L26",
        name="balance_ranks",
        changes="Give every rank the same amount of work.",
        settings={
            "huggingface": (
                argument(
                    "train_sampling_strategy", '{name}="batch_rebalance"', choice="batch_rebalance", done=("batch_rebalance",)
                ),
                argument("dataloader_drop_last", "{name}=True", done=(True,)),
            ),
            "lightning": (trainer("use_distributed_sampler", "Trainer({name}=True), batches of equal token counts"),),
            "loop": (code("batches of equal token counts on every rank"),),
        },
        buckets=("communication", "compute"),
        bound="1 - median/maximum of the ranks' times.",
        precondition="Ranks differ in data, not in clock.",
        side_effect="less random batches",
        verify="Slowest over median rank below 1.05.",
        source="transformers TrainingArguments.train_sampling_strategy",
    ),
    Lever(
        id="L30",
        name="cheaper_evaluation",
        changes="Evaluate less often, on less, or without keeping predictions.",
        settings={
            "huggingface": (
                argument(
                    "eval_accumulation_steps",
                    "{name}=16",
                    codes=("eval_accumulation", "oom", "oom_forecast", "oom_next_phase"),
                    costs="predictions on the host are slower",
                ),
                argument(
                    "prediction_loss_only",
                    "{name}=True",
                    codes=("eval_accumulation", "oom"),
                    done=(True,),
                    costs="no metric but the loss",
                ),
                argument("eval_steps", "{name}={eval_double}", codes=("eval_share",), costs="fewer metrics"),
                argument(
                    "per_device_eval_batch_size", "{name}={eval_batch}", codes=("eval_share",), costs="more memory in evaluation"
                ),
            ),
            "lightning": (
                trainer(
                    "val_check_interval",
                    "a larger Trainer({name}=...) or check_val_every_n_epoch",
                    codes=("eval_share",),
                    costs="fewer metrics",
                ),
                trainer("limit_val_batches", "a smaller Trainer({name}=...)", costs="metrics of a part of the set"),
            ),
            "loop": (
                code("evaluating less often or on a fixed part of the set", codes=("eval_share",), costs="fewer metrics"),
                code(
                    "moving each batch's predictions to the CPU",
                    codes=("eval_accumulation", "oom", "oom_next_phase"),
                    costs="slower metrics",
                ),
            ),
        },
        buckets=("eval",),
        share=1.0,
        bound="The evaluation's time that is left out.",
        precondition="Evaluation takes 15 % and more, or its memory grows.",
        side_effect="fewer metrics; predictions on the host are slower",
        verify="Evaluation's share; its peak.",
        source="transformers TrainingArguments; Lightning Trainer",
    ),
    Lever(
        id="L31",
        name="spaced_checkpoints",
        changes="Save at the interval that costs least in all: sqrt(2 x save time x time between failures).",
        settings={
            "huggingface": (
                argument(
                    "save_strategy",
                    '{name}="steps", save_steps={save_hourly}',
                    codes=("unsaved_work",),
                    done=("steps",),
                    costs="a save an hour",
                ),
                argument("save_steps", "{name}={save_hourly}", codes=("unsaved_work",), costs="a save an hour"),
                argument("save_total_limit", "{name}=2", codes=("disk_forecast",), costs="older checkpoints are deleted"),
                argument("save_steps", "{name}={save_wider}", codes=("save_share",), costs="a longer interval loses more work"),
                argument(
                    "save_only_model",
                    "{name}=True",
                    codes=("disk_forecast",),
                    done=(True,),
                    costs="such a checkpoint cannot be resumed",
                ),
                argument(
                    "fsdp_config",
                    '{name}={{"state_dict_type": "SHARDED_STATE_DICT"}}',
                    codes=("oom", "oom_next_phase"),
                    costs="another checkpoint format",
                ),
            ),
            "lightning": (
                code(
                    "a larger ModelCheckpoint(every_n_train_steps=...), or AsyncCheckpointIO",
                    codes=("save_share",),
                    costs="a longer interval loses more work",
                ),
                code("ModelCheckpoint(train_time_interval=timedelta(hours=1))", codes=("unsaved_work",), costs="a save an hour"),
                code("ModelCheckpoint(save_top_k=2)", codes=("disk_forecast",), costs="older checkpoints are deleted"),
                code(
                    'FSDPStrategy(state_dict_type="sharded")', codes=("oom", "oom_next_phase"), costs="another checkpoint format"
                ),
            ),
            "loop": (
                code("saving once an hour", codes=("unsaved_work",), costs="a save an hour"),
                code(
                    "saving less often, or torch.distributed.checkpoint.async_save",
                    codes=("save_share",),
                    costs="a longer interval loses more work",
                ),
                code("deleting older checkpoints", codes=("disk_forecast",), costs=""),
            ),
        },
        buckets=("save",),
        share=1.0,
        bound="The saving's time that is left out.",
        precondition="Saving takes 5 % and more, or work is at risk.",
        side_effect="a longer interval loses more work; save_only_model cannot resume",
        verify="Saving's share; seconds of work at risk.",
        source="Young 1974; transformers TrainingArguments; Lightning ModelCheckpoint",
    ),
    Lever(
        id="L32",
        name="less_logging",
        changes="Log less often and do not read numbers back from the GPU in every step.",
        settings={
            "huggingface": (
                argument("logging_steps", "{name}={log_wider}"),
                argument("logging_nan_inf_filter", "{name}=False", done=(False,)),
            ),
            "lightning": (trainer("log_every_n_steps", "Trainer({name}={log_wider})"),),
            "loop": (code("logging every 50 steps, without .item() in between"),),
        },
        buckets=("log",),
        share=1.0,
        bound="The time in logging.",
        precondition="Logging takes 5 % and more.",
        side_effect="fewer points in the curves",
        verify="The log bucket's share.",
        source="transformers TrainingArguments",
    ),
    Lever(
        id="L33",
        name="early_stopping",
        changes="Stop when the evaluation has not improved for some time.",
        settings={
            "huggingface": (code("callbacks=[EarlyStoppingCallback(early_stopping_patience=3)] with metric_for_best_model"),),
            "lightning": (code('EarlyStopping(monitor="val_loss", patience=3)'),),
            "loop": (code("stopping after three evaluations without improvement"),),
        },
        buckets=("compute",),
        bound="The steps that are left out.",
        precondition="Evaluations during training.",
        side_effect="may stop too early on a noisy metric",
        verify="Money at the stop against the plan.",
        source="transformers EarlyStoppingCallback; Lightning EarlyStopping",
    ),
    Lever(
        id="L34",
        name="stop_on_nan",
        changes="Stop as soon as the loss is no number.",
        settings={
            "huggingface": (
                argument(
                    "logging_nan_inf_filter",
                    "{name}=False, so that the log shows it, and stopping at the first one",
                    done=(False,),
                ),
            ),
            "lightning": (code("EarlyStopping(..., check_finite=True)"),),
            "loop": (code("stopping when the loss is not finite"),),
        },
        buckets=("compute",),
        bound="All that would still be spent.",
        precondition="The loss is not finite in several steps in a row.",
        side_effect="none",
        verify="Spend after the first such step.",
        source="transformers TrainingArguments; Lightning EarlyStopping",
    ),
    Lever(
        id="L35",
        name="free_idle_gpus",
        changes="Give back GPUs that do nothing.",
        settings={
            "huggingface": (
                environment("CUDA_VISIBLE_DEVICES={used}", codes=("unused_gpu",)),
                code("ending the process when training is over", codes=HELD),
            ),
            "lightning": (
                trainer("devices", "Trainer({name}={used_count})", codes=("unused_gpu",)),
                code("ending the process when training is over", codes=HELD),
            ),
            "loop": (
                environment("CUDA_VISIBLE_DEVICES={used}", codes=("unused_gpu",)),
                code("ending the process when training is over", codes=HELD),
            ),
        },
        buckets=("idle",),
        share=1.0,
        bound="All of the idle time.",
        precondition="Nothing of the run needs them.",
        side_effect="none",
        verify="The idle bucket stops growing.",
        source="SageMaker Debugger LowGPUUtilization; Alibaba PAI-DSW idle culling",
    ),
    Lever(
        id="L36",
        name="fewer_gpus",
        changes="The number of GPUs at which a sample costs least.",
        settings={
            "huggingface": (code("accelerate launch --num_processes {half_gpus} and comparing the cost of a sample"),),
            "lightning": (trainer("devices", "Trainer({name}={half_gpus}) and comparing the cost of a sample"),),
            "loop": (code("torchrun --nproc_per_node {half_gpus} and comparing the cost of a sample"),),
        },
        buckets=("compute", "communication"),
        bound="1 - scaling efficiency.",
        precondition="A sample costs 10 % more than on half as many GPUs.",
        side_effect="the run takes longer",
        verify="Cost of a sample.",
        source="cost per sample on N and N/2 GPUs",
    ),
    Lever(
        id="L41",
        name="parallel_instead_of_split",
        changes="All GPUs at the same time (data parallel, FSDP) instead of one after the other.",
        settings={
            "huggingface": (
                argument("fsdp", '{name}=True instead of device_map="auto"', done=(True,)),
                code('torchrun (DDP) instead of device_map="auto"'),
            ),
            "lightning": (trainer("strategy", 'Trainer({name}="fsdp") instead of layers placed by hand', done=("fsdp",)),),
            "loop": (code("FSDP or DDP instead of layers placed by hand"),),
        },
        buckets=("compute", "idle", "host_gap"),
        bound="Up to (N-1)/N of the GPU-hours.",
        precondition="Layers are spread over GPUs that take turns.",
        side_effect="needs links between the GPUs",
        verify="The sum of utilizations.",
        source="Hugging Face documentation of device_map (for inference)",
    ),
)
