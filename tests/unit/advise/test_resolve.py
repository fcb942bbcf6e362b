"""Advice: the right lever, in names that are accepted, with a bound that the ledger holds."""

from __future__ import annotations

import pytest

from trainbudget.advise.installed import NOTHING, Installed
from trainbudget.advise.resolve import BY_BUCKET, BY_CAUSE, advise, advised
from trainbudget.advise.savings import BUCKETS as ATTACKED
from trainbudget.catalog.levers import LEVERS
from trainbudget.engine.detect import RECORDS
from trainbudget.engine.ledger import BUCKETS
from trainbudget.findings import Finding, Severity
from unit.engine.feeding import fed
from unit.engine.minimal import efficiency, settings, spend
from unit.engine.traces import Build

NEW = Installed(
    accepts={
        "TrainingArguments": frozenset(
            {
                "dataloader_num_workers",
                "dataloader_prefetch_factor",
                "dataloader_persistent_workers",
                "train_sampling_strategy",
                "activation_checkpointing",
                "gradient_checkpointing",
                "per_device_train_batch_size",
                "gradient_accumulation_steps",
                "optim",
                "eval_steps",
                "save_steps",
                "bf16",
                "fp16",
                "tf32",
            }
        )
    },
    optimizers=frozenset({"adamw_torch", "adamw_torch_fused", "adafactor"}),
    versions={"transformers": "5.24.0"},
)
OLD = Installed(
    accepts={
        "TrainingArguments": frozenset(
            {"dataloader_num_workers", "group_by_length", "gradient_checkpointing", "per_device_train_batch_size", "optim"}
        )
    },
    optimizers=frozenset({"adamw_torch", "adafactor"}),
    versions={"transformers": "4.41.2"},
)


def report_of(events):
    return fed(events).report()


def a_finding(code, cause=None, **evidence):
    return Finding(code=code, severity=Severity.WARNING, raised_s=0.0, cause=cause, evidence=evidence)


def texts(finding, report, installed=NEW):
    return [a.setting for a in advise(finding, report, installed=installed)]


def training(**header):
    return report_of(Build(**header).gpu().start().steps(50).end())


# --- what is typed


def test_workers_that_keep_up_with_the_gpu():
    report = training(settings={"dataloader_num_workers": 4})
    finding = a_finding("input_bound", "workers", wait_s=0.9, step_time_s=1.0)
    assert texts(finding, report)[0] == "dataloader_num_workers=8 (now 4)"
    starving = a_finding("input_bound", "workers", wait_s=9.0, step_time_s=1.0)
    assert texts(starving, report)[0] == "dataloader_num_workers=32 (now 4)"  # 64 would do; 32 CPUs are there


def test_no_prefetch_without_workers():
    report = training(settings={"dataloader_num_workers": 0})
    assert texts(a_finding("input_bound", "workers", wait_s=1.0, step_time_s=0.5), report) == ["dataloader_num_workers=4 (now 0)"]


@pytest.mark.parametrize(
    ("installed", "expected"),
    [(NEW, 'train_sampling_strategy="group_by_length"'), (OLD, "group_by_length=True")],
)
def test_renamed_settings_go_by_the_installed_version(installed, expected):
    assert texts(a_finding("padding_waste"), training(), installed)[0] == expected


def test_checkpointing_has_its_new_name_only_where_that_exists():
    report = training(settings={"gradient_checkpointing": True})
    assert texts(a_finding("needless_recompute"), report, NEW) == ["activation_checkpointing=False (now True)"]
    assert texts(a_finding("needless_recompute"), report, OLD) == ["gradient_checkpointing=False (now True)"]


def test_nothing_is_advised_that_the_version_does_not_know():
    assert texts(a_finding("slow_kernel_path", "optimizer"), training(settings={"optim": "adamw_torch"}), OLD) == []
    assert texts(a_finding("eval_share"), training(), OLD) == []  # neither eval_steps nor the eval batch size


def test_what_is_set_already_is_not_advised():
    report = training(settings={"optim": "adamw_torch_fused"})
    assert texts(a_finding("slow_kernel_path", "optimizer"), report) == []
    assert "bf16" not in str(texts(a_finding("precision_unused"), training(settings={"fp16": True})))


def test_without_any_framework_settings_are_named_and_marked():
    (first, *_) = texts(a_finding("input_bound", "workers", wait_s=1.0, step_time_s=1.0), training(), NOTHING)
    assert first == "dataloader_num_workers=4 (not checked: transformers is not installed here)"


def test_lightning_and_loops_get_their_own_words():
    finding = a_finding("input_bound", "workers", wait_s=1.0, step_time_s=1.0, loader_workers=2)
    assert texts(finding, training(framework="lightning"), NOTHING)[0].startswith("DataLoader(num_workers=4)")
    assert texts(finding, training(framework="loop"), NOTHING)[0].startswith("DataLoader(num_workers=4)")
    precision = a_finding("precision_unused")
    assert texts(precision, training(framework="lightning"), NOTHING)[0].startswith('Trainer(precision="bf16-mixed")')
    assert 'torch.autocast("cuda", dtype=torch.bfloat16)' in texts(precision, training(framework="keras"), NOTHING)[0]


def test_half_precision_is_the_one_the_card_has():
    old_card = report_of(Build().gpu(compute_capability="7.0").start().steps(30).end())
    assert texts(a_finding("precision_unused"), old_card)[0] == "fp16=True"


def test_micro_batch_and_accumulation_move_together():
    report = training(settings={"per_device_train_batch_size": 2, "gradient_accumulation_steps": 8})
    assert texts(a_finding("batch_arithmetic"), report)[0] == (
        "per_device_train_batch_size=4, gradient_accumulation_steps=4 (now 2)"
    )
    alone = training(settings={"per_device_train_batch_size": 2, "gradient_accumulation_steps": 1})
    assert texts(a_finding("batch_arithmetic"), alone)[0] == "per_device_train_batch_size=4 (now 2)"


def test_intervals_follow_from_the_share():
    finding = a_finding("eval_share", share_ratio=0.4)
    (text,) = texts(finding, training(settings={"eval_steps": 100}))
    # 40 % at 100 steps is 7.5 % at 822
    assert text == "eval_steps=830 (now 100)"


def test_lint_suggestions_are_the_advice():
    report = report_of(settings.MINIMAL["setting_renamed"]())
    (finding,) = report.findings
    assert [a.setting for a in advise(finding, report)] == ["eval_strategy"]


def test_a_cause_that_no_lever_cures_gets_none():
    assert texts(a_finding("oom", "leak"), training()) == []
    assert texts(a_finding("wasted_spend", buckets={"other": 5000.0}), training()) == []
    assert texts(a_finding("something_new"), training()) == []


# --- how much it saves


@pytest.mark.parametrize(
    ("events", "bucket"),
    [
        (spend.eval_share(), "eval"),
        (spend.save_share(), "save"),
        (spend.log_share(), "log"),
        (efficiency.padding_waste(), "padding"),
        (efficiency.needless_recompute(), "compute"),
        (efficiency.precision_unused(), "compute"),
        (efficiency.busy_but_slow(), "compute"),
        (efficiency.step_over_budget(), "compute"),
        (efficiency.scaling_inefficient(), "compute"),
        (efficiency.slow_optimizer(), "compute"),
    ],
)
def test_a_saving_is_never_more_than_its_bucket(events, bucket):
    report = advised(report_of(events))
    savings = [a.saving for f in report.findings for a in f.advice if "gpu_seconds" in a.saving]
    assert savings
    for saving in savings:
        assert saving["scope"] == "so_far"
        assert 0.0 < saving["gpu_seconds"] <= report.ledger[bucket].gpu_seconds + 1e-3
        assert saving["cost"] <= report.ledger[bucket].cost + 1e-3
        assert saving["currency"] == "USD"


def test_a_run_that_goes_on_is_projected_and_the_bound_grows_with_it():
    build = Build(budget={"steps_total": 1000}).gpu().start().steps(250, tokens=100.0, useful_tokens=50.0)
    report = advised(report_of(build.events))
    (finding,) = [f for f in report.findings if f.code == "padding_waste"]
    saving = finding.advice[0].saving
    assert saving["scope"] == "run"
    # half of 1,000 steps of 1 s, on one GPU
    assert saving["time_s"] == pytest.approx(500.0, rel=0.05)
    assert saving["cost"] == pytest.approx(500.0 * 2.0 / 3600.0, rel=0.05)
    at_most = report.ledger["padding"].ratio * report.projection.run_time_s
    assert saving["time_s"] <= at_most * 1.001


def test_a_diverged_run_saves_all_that_is_left():
    build = Build(budget={"steps_total": 1000}).gpu().start().steps(200, loss=lambda n: float("nan") if n > 100 else 2.0)
    report = advised(report_of(build.events))
    (finding,) = report.findings
    assert finding.advice[0].saving["time_s"] == pytest.approx(800 * 1.01, rel=0.02)


def test_no_price_no_money_and_no_bucket_no_number():
    report = advised(report_of(Build(price=None).gpu().start().steps(150, tokens=10.0, useful_tokens=5.0).end()))
    (finding,) = report.findings
    assert "cost" not in finding.advice[0].saving
    assert "time_s" not in advise(a_finding("eval_share", share_ratio=0.2), training(), installed=NEW)[0].saving


# --- tables


def test_tables_name_things_that_exist():
    assert {i for ids in BY_CAUSE.values() for i in ids} | {i for ids in BY_BUCKET.values() for i in ids} <= set(LEVERS)
    assert {b for bs in ATTACKED.values() for b in bs} <= set(BUCKETS)
    assert set(BY_BUCKET) <= set(BUCKETS)
    for name in BY_CAUSE:
        code, cause = name.split("/")
        if code in RECORDS:
            assert cause in RECORDS[code].causes


@pytest.mark.parametrize("framework", ["huggingface", "lightning", "keras", "loop", "agent", None])
def test_every_code_and_cause_can_be_asked_for_advice(framework):
    report = training(framework=framework)
    for code, record in RECORDS.items():
        for cause in (None, *record.causes):
            for installed in (None, NOTHING, OLD):
                advice = advise(a_finding(code, cause), report, installed=installed)
                assert len(advice) <= 2
                assert all("{" not in a.setting.replace("{...}", "").replace('{"', "") for a in advice), advice
