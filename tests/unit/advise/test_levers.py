"""The lever table: complete, consistent, and in names that the frameworks installed here accept."""

from __future__ import annotations

import string

import pytest

from trainbudget.advise.installed import installed
from trainbudget.advise.levers import LEVERS
from trainbudget.advise.values import WORDS
from trainbudget.catalog.levers import KINDS
from trainbudget.engine.detect import RECORDS
from trainbudget.engine.ledger import BUCKETS

SETTINGS = [(lever, framework, s) for lever in LEVERS.values() for framework, ss in lever.settings.items() for s in ss]


@pytest.mark.parametrize("lever", LEVERS.values(), ids=lambda lever: lever.id)
def test_every_lever_says_what_it_does_what_it_costs_and_who_says_so(lever):
    for name in ("name", "changes", "bound", "precondition", "side_effect", "verify", "source"):
        assert getattr(lever, name), name
    assert {"huggingface", "lightning", "loop"} <= set(lever.settings)
    assert lever.buckets
    assert set(lever.buckets) <= set(BUCKETS)
    assert lever.share is None or 0.0 < lever.share <= 1.0


def test_names_are_unique():
    assert len({lever.name for lever in LEVERS.values()}) == len(LEVERS)
    assert all(key == lever.id for key, lever in LEVERS.items())


@pytest.mark.parametrize(("lever", "framework", "setting"), SETTINGS)
def test_settings_are_typed_with_known_words(lever, framework, setting):
    assert setting.kind in KINDS
    words = {field for _, field, _, _ in string.Formatter().parse(setting.text) if field}
    assert words <= {*WORDS, "name"}
    assert ("name" in words) == bool(setting.names)
    assert set(setting.codes) <= set(RECORDS) | {"disk_forecast"}


@pytest.mark.parametrize(
    ("lever", "framework", "setting"),
    [(lever, f, s) for lever, f, s in SETTINGS if s.names],
    ids=lambda value: getattr(value, "id", None) or getattr(value, "text", str(value))[:40],
)
def test_each_name_is_accepted_or_has_an_accepted_successor(lever, framework, setting):
    """A renamed argument may stay in the table for older versions, but each lever must have a name that is accepted today."""
    here = installed()
    if not here.knows(setting.kind):
        pytest.skip(f"{setting.kind} is not installed")
    siblings = [s for s in lever.settings[framework] if s.kind == setting.kind]
    assert any(here.has(s.kind, name) for s in siblings for name in s.names), setting.names
    if setting.choice is not None:
        assert here.takes(setting.choice)


@pytest.mark.slow
def test_installed_reads_what_the_classes_really_take():
    transformers = pytest.importorskip("transformers")
    import dataclasses

    here = installed()
    assert here.accepts["TrainingArguments"] >= {f.name for f in dataclasses.fields(transformers.TrainingArguments)} - {
        "framework_only"
    }
    assert here.versions["transformers"] == transformers.__version__
    assert "adamw_torch_fused" in here.optimizers
    assert not here.takes("adamw_hf")
    assert here.takes("batch_rebalance") or "train_sampling_strategy" not in here.accepts["TrainingArguments"]


def test_installed_reads_trainer_and_data_loader():
    import inspect

    pytest.importorskip("lightning")
    from lightning.pytorch import Trainer
    from torch.utils.data import DataLoader

    here = installed()
    assert here.accepts["Trainer"] == set(inspect.signature(Trainer.__init__).parameters) - {"self"}
    assert here.accepts["DataLoader"] == set(inspect.signature(DataLoader.__init__).parameters) - {"self"}
    assert not here.has("Trainer", "gpus")


def test_every_record_names_levers_that_exist():
    for code, record in RECORDS.items():
        assert set(record.levers) <= set(LEVERS), code
