"""`plan="auto"` in real trainings on the CPU with a mock card of little memory: what will not fit is told before it is tried.

Each run is a script in a process of its own, which the planner runs once more up to its training, at the lowest priority: on
a machine that has nothing else to do this takes 10 s, on a busy one minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("lightning.pytorch")

from trainbudget.events import BudgetFact, Plan, Step
from trainbudget.live.pipeline import replay
from trainbudget.trace import read_trace

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SCRIPTS = Path(__file__).parent / "auto_plan"
FRAMEWORKS = ("hf", "lightning")
#: GiB of the mock card: the short batches fit, the long one needs 0.8 GiB.
LITTLE = "0.6"


def run(script: Path, *arguments: str, cwd: Path) -> str:
    """Runs a script; what it printed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        capture_output=True,
        check=False,
        text=True,
        timeout=590,
        cwd=cwd,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


def long_batch(framework: str, tmp_path: Path, *arguments: str) -> tuple[Path, str]:
    record = tmp_path / "run"
    text = run(SCRIPTS / f"{framework}_long_batch.py", str(record), *arguments, cwd=tmp_path)
    assert (tmp_path / "run.started").read_text() == "once\n", "the script that was planned again wrote into the run's file"
    return record, text


def of_kind(record: Path, kind: type):
    return [fact for fact in read_trace(record) if isinstance(fact, kind)]


def sources(record: Path) -> set[str]:
    """Where memory budgets came from."""
    return {f.memory_peak_bytes.source for f in of_kind(record, BudgetFact) if f.memory_peak_bytes is not None}


def only(record: Path, code: str):
    (found,) = [f for f in replay(read_trace(record)).findings if f.code == code]
    return found


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_long_batch_is_forecast_while_steps_go_on(tmp_path, framework):
    record, text = long_batch(framework, tmp_path, LITTLE, "oom_forecast", "during", "yes", "4000", "3600")
    found = only(record, "oom_forecast")
    planned, *corrected = of_kind(record, Plan)
    step = planned.longest[0].step
    assert (found.evidence["tokens"], found.evidence["source"]) == (3000.0, "lengths")
    assert found.forecast.at_step == step
    assert found.forecast.at_s > found.raised_s + 10
    assert found.evidence["predicted_low_bytes"] > found.evidence["limit_bytes"] - found.evidence["context_bytes"]
    assert f"3000 tokens at step {step}" in found.summary
    assert found.advice
    # Three lengths were traced at their own shape; the measured steps then moved all of them.
    assert [row[0] for row in planned.peak_by_tokens] == [32.0, 310.0, 3000.0]
    assert planned.peak_by_tokens[2][1] > 4 * planned.peak_by_tokens[1][1]
    measured = max(f.peak_reserved_bytes or 0 for f in read_trace(record) if type(f).__name__ == "Allocator")
    assert corrected[-1].peak_by_tokens[0][1] == pytest.approx(measured, rel=0.02)
    assert found.evidence["predicted_bytes"] == pytest.approx(corrected[-1].peak_by_tokens[2][1], rel=0.02)
    assert f"in the longest batch (3,000 tokens at step {step:,})" in text


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_will_not_fit_is_told_before_the_first_step(tmp_path, framework):
    record, _ = long_batch(framework, tmp_path, LITTLE, "oom_predicted", "before", "yes", "4000", "3600")
    found = only(record, "oom_predicted")
    assert found.raised_s < min(step.t_s for step in of_kind(record, Step))
    assert found.severity.value == "critical"
    assert found.evidence["needed_low_bytes" if "needed_low_bytes" in found.evidence else "predicted_low_bytes"] > 0.15 * 2**30
    assert found.advice
    (budget,) = [
        f for f in of_kind(record, BudgetFact) if f.memory_peak_bytes is not None and f.memory_peak_bytes.source == "plan"
    ]
    assert budget.memory_peak_bytes.value > 0.6 * 2**30
    assert budget.optimizer_state_bytes.value > 0


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_long_batch_comes_at_the_step_that_was_planned(tmp_path, framework):
    record, _ = long_batch(framework, tmp_path, LITTLE, "oom_predicted", "before", "no", "80", "61")
    came = [s.step for s in of_kind(record, Step) if s.tokens and s.tokens / (s.count or 1) > 500]
    planned = of_kind(record, Plan)[0].longest[0]
    assert planned.tokens == 3000.0
    assert came == [planned.step]


DELETES = """
import shutil, sys, time
shutil.rmtree("old", ignore_errors=True)
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
from trainbudget.huggingface import TrainBudgetCallback
class Slowly(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        time.sleep(0.1)
        control.should_training_stop = '"source":"plan"' in open("run/trace.jsonl").read() or time.monotonic() - began > 500
began = time.monotonic()
config = LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=800)
model = LlamaForCausalLM(config)
rows = [{"input_ids": torch.ones(24, dtype=torch.long), "labels": torch.ones(24, dtype=torch.long)}] * 100000
callback = TrainBudgetCallback(plan="auto", backend="mock", run_directory="run", listen="off", interval=0.1)
import os; os.mkdir("old"); open("old/checkpoint", "w").write("kept")
arguments = TrainingArguments("out", use_cpu=True, per_device_train_batch_size=2, report_to="none", save_strategy="no")
Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[callback, Slowly()]).train()
callback.monitor.close()
"""


def test_a_script_that_would_delete_is_planned_by_its_description(tmp_path):
    script = tmp_path / "deletes.py"
    script.write_text(DELETES)
    run(script, cwd=tmp_path)
    assert (tmp_path / "old" / "checkpoint").read_text() == "kept"
    assert "plan" in sources(tmp_path / "run")


LOOP = """
import sys, torch, trainbudget
with trainbudget.Monitor(plan="auto", backend="mock", run_directory="run", listen="off", interval=0.1) as monitor:
    for _ in range(3):
        with monitor.step():
            torch.ones(3).sum()
"""


def test_a_loop_of_its_own_is_told_once_that_it_has_no_plan(tmp_path):
    script = tmp_path / "loop.py"
    script.write_text(LOOP)
    text = run(script, cwd=tmp_path)
    assert text.count("no plan for this run (a loop of its own is not planned by itself)") == 1


MANUAL = """
import time, lightning.pytorch as pl, torch
from torch.utils.data import DataLoader
from trainbudget.lightning import TrainBudgetCallback
class Manual(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.automatic_optimization = torch.nn.Linear(4, 1), False
    def training_step(self, batch, index):
        loss = self.layer(batch).mean()
        self.manual_backward(loss)
        self.optimizers().step()
        time.sleep(0.05)
        self.trainer.should_stop = not callback.monitor._auto_plan.busy or time.monotonic() - began > 500
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
began = time.monotonic()
callback = TrainBudgetCallback(plan="auto", backend="mock", run_directory="run", listen="off", interval=0.1)
trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, callbacks=[callback])
trainer.fit(Manual(), DataLoader(torch.zeros(100000, 4), batch_size=2))
callback.monitor.close()
"""


def test_a_plan_that_cannot_be_made_is_one_line_and_costs_nothing(tmp_path):
    script = tmp_path / "manual.py"
    script.write_text(MANUAL)
    text = run(script, cwd=tmp_path)
    assert text.count("no plan for this run (") == 1
    assert "manual optimization" in text
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["outcome"] == "finished"
    assert "plan" not in sources(tmp_path / "run")
