"""What `plan="auto"` costs the training thread: trainings with and without it in turn, in one process, compared by ratio.

    python bench/hooks/auto_plan.py [ROUNDS]

Prints medians of: the call that begins training (`on_train_begin`), the first step, the steps while the planner's process is
running, and all hooks of a training, in seconds; and each over the same without a plan. `waits` is a training whose steps wait
for a device as on a GPU, `computes` one that computes on the CPU itself: there the planner takes what is left of the machine,
and a core that shares its units with another (SMT) is slower while both work.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from trainbudget.huggingface import TrainBudgetCallback

STEPS = 40


class Clock(TrainerCallback):
    """Times the calls around ours: it stands first and last."""

    def __init__(self) -> None:
        self.began_s = 0.0
        self.steps: list[float] = []

    def on_step_begin(self, args, state, control, **kwargs) -> None:
        self.began_s = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs) -> None:
        self.steps.append(time.perf_counter() - self.began_s)


class Timed(TrainBudgetCallback):
    """Ours, with the call that begins training timed."""

    begin_call_s = 0.0

    def on_train_begin(self, *args, **kwargs):
        began = time.perf_counter()
        super().on_train_begin(*args, **kwargs)
        self.begin_call_s = time.perf_counter() - began


#: Kind of training -> width of the model, tokens of an example, seconds a step sleeps.
KINDS = {"waits": (8, 4, 0.05), "computes": (64, 64, 0.02)}


def train(kind: str, plan: str | None, folder: Path) -> dict[str, float]:
    width, tokens, sleep_s = KINDS[kind]
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=width, intermediate_size=2 * width, num_hidden_layers=2, num_attention_heads=4, vocab_size=16 * width
    )
    rows = [{"input_ids": torch.ones(tokens, dtype=torch.long), "labels": torch.ones(tokens, dtype=torch.long)}] * 1000
    callback = Timed(plan=plan, backend="mock", run_directory=str(folder / "run"), listen="off", log=False)
    clock = Clock()
    arguments = TrainingArguments(
        str(folder), use_cpu=True, max_steps=STEPS, per_device_train_batch_size=2, report_to="none", save_strategy="no",
        disable_tqdm=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.register_forward_pre_hook(lambda *_: time.sleep(sleep_s))
    trainer = Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[callback, clock])
    trainer.train()
    hooks_s = callback.monitor._counters.hook_s
    callback.monitor.close()
    return {
        "begin_call_s": callback.begin_call_s,
        "first_step_s": clock.steps[0],
        "step_s": statistics.median(clock.steps[1:]),
        "slowest_step_s": max(clock.steps[1:]),
        "hooks_s": hooks_s,
    }


def main(rounds: int) -> None:
    out: dict[str, object] = {"rounds": rounds}
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            train(kind, None, Path(folder, f"{kind}-warm"))
            found: dict[str, list[dict[str, float]]] = {"none": [], "auto": []}
            for place in range(rounds):
                for name in ("none", "auto") if place % 2 else ("auto", "none"):
                    plan = "auto" if name == "auto" else None
                    found[name].append(train(kind, plan, Path(folder, f"{kind}-{name}-{place}")))
            medians = {name: {key: statistics.median(r[key] for r in runs) for key in runs[0]} for name, runs in found.items()}
            ratios = {key: round(medians["auto"][key] / medians["none"][key], 3) for key in medians["none"]}
            out[kind] = {**medians, "auto_over_none": ratios}
    print(json.dumps(out))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
