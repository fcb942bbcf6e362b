"""What the planner and its tracing process say to each other. Plain data, no torch."""

from __future__ import annotations

from typing import Any

import msgspec

from trainbudget.plan.train_spec import TargetGpu, TrainSpec


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """One question to a tracing process: the step of this configuration on this card.

    Attributes:
        longest: for a script: at the longest batch of its data set, else at the first one.
    """

    spec: TrainSpec
    target: TargetGpu
    longest: bool = True


class Facts(msgspec.Struct, kw_only=True):
    """What the script said about its run; travels to the planner. `spec` holds fields of TrainSpec."""

    framework: str
    title: str
    spec: dict[str, Any]
    settings: dict[str, Any] = {}
    steps: int | None = None
    eval_steps: int | None = None
    eval_batches: int | None = None
    save_steps: int | None = None
    token_ratio: float = 1.0  # mean batch over the longest, in tokens
    first_batch: tuple[int | None, int | None] = (None, None)  # examples, tokens an example
    long_batches: list[tuple[int | None, int]] = []  # optimizer step (None: nobody knows the order), tokens of a micro-batch
    model_config: dict[str, Any] | None = None
    notes: list[str] = []
    startup_s: float = 0.0


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What the child starts with."""

    question: Question  # the card that capability probes answer for; its spec is a script's only where the script is silent
    script: str | None = None
    module: str | None = None  # instead of a script: `python -m MODULE`
    arguments: list[str] = []
    beside: bool = False  # the script is running in another process meanwhile: what it has written stays as it is
    model_config: Any = None
    max_examples: int | None = None
    prepare_data: bool = True
    launched: dict[str, str] = {}  # what torchrun or accelerate had said


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """A training that is running and is to be planned: by its script (or module), else by the tables of a plan file.

    Attributes:
        gpu: the `[gpu]` table: name, count, memory_gib, price_per_hour.
        trainable_parameters: of the model that is training; a script that trains another one first is not the right plan.
    """

    gpu: dict[str, Any]
    script: str | None = None
    module: str | None = None
    arguments: list[str] = []
    tables: dict[str, Any] = {}
    model_config: Any = None
    trainable_parameters: int | None = None
