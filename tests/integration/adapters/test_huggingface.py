"""The Hugging Face callback on real trainings of a few steps: what it measures against what is known to be true."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import time
import weakref

import pytest
import torch

from integration.adapters.small import (
    Examples,
    Linear,
    SleepingCollator,
    TokenCollator,
    count_of,
    facts_of,
    is_the_wait,
    moments,
    phases,
    seconds,
    steps,
    total,
    watched,
)
from trainbudget.events import Header, Plan
from trainbudget.live.pipeline import replay
from trainbudget.trace import read_trace

transformers = pytest.importorskip("transformers")
from trainbudget.huggingface import TrainBudgetCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")


def trainer_of(folder, monitor, *, model=None, collator=None, examples=24, callbacks=None, kind=None, **arguments):
    defaults = {
        "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 4,
        "max_steps": 6,
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_strategy": "no",
        "dataloader_pin_memory": False,
        "remove_unused_columns": False,
    }
    return (kind or transformers.Trainer)(
        model=model or Linear(),
        args=transformers.TrainingArguments(str(folder / "out"), **defaults | arguments),
        train_dataset=Examples(examples),
        eval_dataset=Examples(8),
        data_collator=collator or SleepingCollator(0.0),
        callbacks=[TrainBudgetCallback(monitor=monitor)] if callbacks is None else callbacks,
    )


@pytest.mark.parametrize("accumulation", [1, 2])
def test_data_wait_is_what_the_collator_took(tmp_path, accumulation):
    collator = SleepingCollator(0.03)
    monitor = watched(tmp_path)
    trainer_of(
        tmp_path, monitor, collator=collator, gradient_accumulation_steps=accumulation, max_steps=-1, num_train_epochs=2
    ).train()
    facts = facts_of(monitor)
    assert count_of(facts) == trainer_steps(24, 2, accumulation, 2)
    assert is_the_wait(total(facts, "data_wait_s"), collator.slept_s)
    assert total(facts, "samples") == 48
    assert total(facts, "micro_steps") == (24 if accumulation > 1 else 0)  # absent where there are none


def trainer_steps(examples, batch, accumulation, epochs):
    return epochs * examples // (batch * accumulation)


@pytest.mark.slow
@pytest.mark.parametrize("accumulation", [1, 2])
def test_with_workers_only_what_is_waited_for_counts(tmp_path, accumulation):
    monitor = watched(tmp_path)
    trainer_of(
        tmp_path,
        monitor,
        collator=SleepingCollator(0.02),
        model=Linear(delay_s=0.06),
        gradient_accumulation_steps=accumulation,
        dataloader_num_workers=2,
        max_steps=6,
    ).train()
    facts = facts_of(monitor)
    later = steps(facts)[1:]  # the first one has the start of the workers
    assert sum(s.data_wait_s or 0.0 for s in later) < 0.06 * len(later) * accumulation / 2
    assert monitor.loader_workers == 2


def test_tokens_belong_to_their_own_step(tmp_path):
    monitor = watched(tmp_path)
    trainer = trainer_of(tmp_path, monitor, collator=TokenCollator(), model=Linear(delay_s=0.11), max_steps=4, examples=200)
    seen = []
    trainer.model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    trainer.train()
    facts = facts_of(monitor)
    assert [s.tokens for s in steps(facts)] == seen
    assert len(set(seen)) > 1
    assert [s.useful_tokens for s in steps(facts)] == [n - 2 for n in seen]  # one pad token a row of two
    assert [s.max_sequence_tokens for s in steps(facts)] == [n / 2 for n in seen]


def test_evaluation_saving_and_logging_have_their_own_time(tmp_path):
    monitor = watched(tmp_path)

    class SlowToSaveAndLog(transformers.Trainer):
        def _save_checkpoint(self, *args, **kwargs):
            time.sleep(0.12)
            return super()._save_checkpoint(*args, **kwargs)

        def log(self, *args, **kwargs):
            time.sleep(0.03)
            return super().log(*args, **kwargs)

    trainer = trainer_of(
        tmp_path, monitor, kind=SlowToSaveAndLog, model=Linear(eval_delay_s=0.05), max_steps=4, eval_strategy="steps",
        eval_steps=2, save_strategy="steps", save_steps=2, logging_strategy="steps", logging_steps=1,
    )  # fmt: skip
    trainer.train()
    facts = facts_of(monitor)
    assert len(phases(facts, "eval")) == 2
    assert len(phases(facts, "save")) == 2
    assert len(phases(facts, "log")) == 4 + 2 + 1  # each step, each evaluation, the closing one
    assert 2 * (2 * 0.05 + 0.03) <= seconds(facts, "eval") < 2 * (2 * 0.05 + 0.03) + 0.2
    assert 2 * 0.12 <= seconds(facts, "save") < 2 * 0.12 + 0.5
    assert total(facts, "data_wait_s") < 0.1
    assert moments(facts, "train_end")


@pytest.mark.slow
def test_a_dictionary_of_evaluation_sets_is_one_phase(tmp_path):
    monitor = watched(tmp_path)
    trainer = trainer_of(tmp_path, monitor, max_steps=2, eval_strategy="steps", eval_steps=2)
    trainer.eval_dataset = {"a": Examples(4), "b": Examples(4)}
    trainer.train()
    assert len(phases(facts_of(monitor), "eval")) == 1


@pytest.mark.slow
def test_several_trainings_and_an_evaluation_outside_are_one_run(tmp_path):
    monitor = watched(tmp_path)
    trainer = trainer_of(tmp_path, monitor, max_steps=3)
    trainer.evaluate()
    trainer.train()
    trainer.train()
    trainer.predict(Examples(4))
    facts = facts_of(monitor)
    assert [m.event for m in moments(facts, "train_begin", "train_end")] == ["train_begin", "train_end"] * 2
    assert count_of(facts) == 6
    assert len(phases(facts, "eval")) == 2
    assert monitor.report.outcome == "finished"


@pytest.mark.slow
def test_a_second_trainer_with_the_same_callback_is_measured_as_exactly(tmp_path):
    monitor = watched(tmp_path)
    callback = TrainBudgetCallback(monitor=monitor)
    for _ in range(2):
        trainer_of(tmp_path, monitor, callbacks=[callback], max_steps=2, eval_strategy="steps", eval_steps=2).train()
    facts = facts_of(monitor)
    assert len(phases(facts, "eval")) == 2
    assert count_of(facts) == 4


def test_resume_continues_the_numbers(tmp_path):
    first = watched(tmp_path)
    trainer_of(tmp_path, first, max_steps=4, save_strategy="steps", save_steps=2).train()
    first.close()
    collator = SleepingCollator(0.02)
    monitor = watched(tmp_path, run_directory=str(tmp_path / "again"))
    trainer_of(tmp_path, monitor, max_steps=8, collator=collator).train(resume_from_checkpoint=str(tmp_path / "out/checkpoint-2"))
    facts = facts_of(monitor)
    assert [m.detail["step"] for m in moments(facts, "resume")] == [2]
    assert steps(facts)[-1].step == 8
    assert count_of(facts) == 6
    assert is_the_wait(total(facts, "data_wait_s"), collator.slept_s)


@pytest.mark.parametrize(
    ("error", "word", "event"), [(ValueError("mine"), "failed", "exception"), (KeyboardInterrupt(), "interrupted", "interrupt")]
)
def test_an_error_ends_the_training_and_comes_out(tmp_path, error, word, event):
    def fail(number, size):
        if number == 3:
            raise error

    monitor = watched(tmp_path)
    trainer = trainer_of(tmp_path, monitor, model=Linear(on_forward=fail))
    with pytest.raises(type(error)):
        trainer.train()
    loader = trainer.get_train_dataloader()
    facts = facts_of(monitor)
    assert [m.event for m in moments(facts)][-1] == event
    assert len(moments(facts, "exception", "interrupt")) == 1
    assert count_of(facts) == 2
    assert monitor.report.outcome == word
    assert type(loader.base_dataloader) is torch.utils.data.DataLoader


def test_after_an_error_a_second_try_in_the_same_process_is_fine(tmp_path):
    def fail(number, size):
        if number == 2:
            raise ValueError("mine")

    monitor = watched(tmp_path)
    trainer = trainer_of(tmp_path, monitor, model=Linear(on_forward=fail), max_steps=3)
    with pytest.raises(ValueError, match="mine"):
        trainer.train()
    trainer.train()
    facts = facts_of(monitor)
    assert count_of(facts) == 1 + 3
    assert monitor.report.outcome == "finished"


@pytest.mark.slow
def test_a_batch_size_search_is_seen_with_its_lost_attempts(tmp_path):
    def too_large(number, size):
        if size > 5:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB.")

    plan = tmp_path / "plan.json"
    sizes_of_it = {"value": 9, "low": 8, "high": 10}
    plan.write_text(
        json.dumps(
            {
                "memory": {"device_bytes": sizes_of_it, "reserved_bytes": sizes_of_it},
                "longest_batches": [{"step": 2, "tokens": 64}],
            }
        )
    )
    monitor = watched(tmp_path, plan=str(plan))
    trainer_of(
        tmp_path, monitor, model=Linear(on_forward=too_large), max_steps=2,
        per_device_train_batch_size=8, auto_find_batch_size=True,
    ).train()  # fmt: skip
    facts = facts_of(monitor)
    sizes = [m.detail["batch_size"] for m in moments(facts, "train_begin")]
    assert sizes[0] == 8
    assert sizes[-1] <= 5
    assert len(moments(facts, "oom")) == len(sizes) - 1
    assert moments(facts, "oom")[0].detail["requested_bytes"] == 2 * 2**30
    assert not moments(facts, "exception")
    assert monitor.report.outcome == "finished"
    for place, fact in enumerate(facts):  # a retry takes many seconds on a busy machine: at an even pace, what is it called?
        fact.t_s = place * 0.1
    findings = [f for f in replay(facts).findings if f.code == "oom"]
    assert findings
    assert {f.severity.value for f in findings} == {"warning"}
    planned = [f for f in facts if isinstance(f, Plan)]
    assert planned[0].longest, "the plan of the first size"
    assert [f.longest for f in planned[1:]] == [None] * (len(sizes) - 1), "no word of another size"


def test_the_loader_is_as_it_was(tmp_path):
    monitor = watched(tmp_path)
    during = []

    class Look(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, train_dataloader=None, **kwargs):
            inner = train_dataloader.base_dataloader
            during.append((type(inner), isinstance(inner, torch.utils.data.DataLoader), inner.batch_size, len(inner)))
            self.loader = train_dataloader

    look = Look()
    trainer_of(tmp_path, monitor, callbacks=[TrainBudgetCallback(monitor=monitor), look], max_steps=2).train()
    monitor.close()
    assert {x[1:] for x in during} == {(True, None, 12)}  # accelerate gives its own batch sampler
    assert type(look.loader.base_dataloader) is torch.utils.data.DataLoader


def test_given_as_a_class(tmp_path, monkeypatch):
    for name, value in {"BACKEND": "mock:healthy", "LISTEN": "off", "RUN_DIR": str(tmp_path / "run"), "LOG": "0"}.items():
        monkeypatch.setenv(f"TRAINBUDGET_{name}", value)
    trainer = trainer_of(tmp_path, None, callbacks=[TrainBudgetCallback], max_steps=2)
    trainer.train()
    (callback,) = [c for c in trainer.callback_handler.callbacks if isinstance(c, TrainBudgetCallback)]
    assert count_of(facts_of(callback.monitor)) == 2


def test_added_later(tmp_path):
    calls = []

    class Counting(transformers.TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            calls.append("begin")

    monitor = watched(tmp_path)
    trainer = trainer_of(tmp_path, monitor, callbacks=[Counting()], max_steps=2, eval_strategy="steps", eval_steps=2)
    trainer.add_callback(TrainBudgetCallback(monitor=monitor))
    trainer.train()
    facts = facts_of(monitor)
    assert count_of(facts) == 2
    assert len(phases(facts, "eval")) == 1
    assert calls == ["begin"]  # moving ourselves in the list makes nobody hear a hook twice


def test_an_error_with_a_callback_that_was_added_later(tmp_path):
    def fail(number, size):
        if number == 2:
            raise ValueError("mine")

    monitor = watched(tmp_path)
    trainer = trainer_of(tmp_path, monitor, callbacks=[], model=Linear(on_forward=fail))
    trainer.add_callback(TrainBudgetCallback(monitor=monitor))
    with pytest.raises(ValueError, match="mine"):
        trainer.train()
    assert [m.event for m in moments(facts_of(monitor))][-1] == "exception"


def test_trackers_get_our_numbers_and_the_console_does_not(tmp_path, capsys):
    seen = []

    class Tracker(transformers.TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            seen.append(dict(logs))

    monitor = watched(tmp_path)
    callbacks = [Tracker(), TrainBudgetCallback(monitor=monitor)]
    trainer = trainer_of(
        tmp_path, monitor, callbacks=callbacks, model=Linear(delay_s=0.1), max_steps=5, logging_strategy="steps", logging_steps=1
    )
    late = Tracker()
    late.on_log = lambda args, state, control, logs=None, **kwargs: seen_late.append(dict(logs))
    seen_late = []
    trainer.add_callback(late)
    trainer.train()
    monitor.close()
    for one in (seen, seen_late):
        assert {"trainbudget/cost", "trainbudget/findings_active"} <= set().union(*one)
    assert "trainbudget/" not in capsys.readouterr().out
    assert not any(name.startswith("trainbudget/") for entry in trainer.state.log_history for name in entry)


def test_stop_on_exceeded_budget_with_a_checkpoint(tmp_path):
    monitor = watched(tmp_path, budget={"run_time_s": 0.5}, on_exceed="stop")
    trainer = trainer_of(tmp_path, monitor, model=Linear(delay_s=0.02), max_steps=2000)
    trainer.train()
    facts = facts_of(monitor)
    done = steps(facts)[-1].step
    assert done < 2000
    assert (tmp_path / f"out/checkpoint-{done}").is_dir()
    assert monitor.report.outcome == "stopped"


def test_dry_run_never_stops(tmp_path):
    monitor = watched(tmp_path, budget={"run_time_s": 0.01}, on_exceed="dry_run")
    trainer_of(tmp_path, monitor, model=Linear(delay_s=0.05), max_steps=8).train()
    assert count_of(facts_of(monitor)) == 8


def test_losses_are_the_models_own(tmp_path):
    monitor = watched(tmp_path)
    losses = []
    model = Linear(delay_s=0.11)
    model.register_forward_hook(lambda module, inputs, output: losses.append(float(output["loss"].detach())))
    trainer_of(tmp_path, monitor, model=model, max_steps=4).train()
    assert [s.loss for s in steps(facts_of(monitor))] == pytest.approx(losses)


def test_the_header_tells_framework_settings_and_name(tmp_path):
    monitor = watched(tmp_path)
    trainer_of(tmp_path, monitor, max_steps=2).train()
    header = facts_of(monitor)[0]
    assert isinstance(header, Header)
    assert (header.framework, header.run) == ("huggingface", "out")
    assert header.settings["per_device_train_batch_size"] == 2
    assert "output_dir" not in header.settings


def test_nothing_of_the_trainer_is_held_after_the_end(tmp_path):
    monitor = watched(tmp_path)
    callback = TrainBudgetCallback(monitor=monitor)
    trainer = trainer_of(tmp_path, monitor, callbacks=[callback], max_steps=2)
    trainer.train()
    model = weakref.ref(trainer.model)
    gc.disable()  # its memory is given back at once, as without us
    try:
        del trainer
        assert model() is None
    finally:
        gc.enable()
    monitor.close()


def test_the_callback_goes_through_pickle_and_deepcopy(tmp_path):
    monitor = watched(tmp_path)
    callback = TrainBudgetCallback(monitor=monitor)
    trainer = trainer_of(tmp_path, monitor, callbacks=[callback], max_steps=2)
    for twin in (copy.deepcopy(callback), pickle.loads(pickle.dumps(callback))):
        assert twin.monitor is not monitor
        assert not twin.monitor.started
    assert trainer.__reduce_ex__(2)[1] == (transformers.Trainer,)  # not our class, which nobody could import
    monitor.close()


def test_switched_off_it_touches_nothing(tmp_path):
    monitor = watched(tmp_path, disabled=True)
    callback = TrainBudgetCallback(monitor=monitor)
    trainer = trainer_of(tmp_path, monitor, callbacks=[callback], max_steps=2)
    before = list(trainer.callback_handler.callbacks)
    trainer.train()
    assert type(trainer) is transformers.Trainer
    assert trainer.callback_handler.callbacks == before
    assert not (tmp_path / "run").exists()


def test_the_replay_of_the_record_says_what_the_live_run_said(tmp_path):
    monitor = watched(tmp_path, budget={"step_time_s": 0.001, "memory_peak": "1 GiB"})
    trainer_of(tmp_path, monitor, collator=SleepingCollator(0.004), max_steps=60, eval_strategy="steps", eval_steps=20).train()
    monitor.close()
    live, again = monitor.report, replay(read_trace(monitor.directory))
    assert any(s.count for s in read_trace(monitor.directory) if getattr(s, "count", None))  # merged lines among them
    assert again.ledger == live.ledger
    assert again.findings == live.findings
    assert live.findings
    assert again.steps == live.steps
