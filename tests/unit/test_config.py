"""Settings: argument, variable, file, default; bad arguments raise, everything else is said once and passed over."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

import trainbudget
from trainbudget.budget import Money
from trainbudget.config import Settings, load, parse_listen
from trainbudget.config.reading import FIELD_OF, PARSERS
from trainbudget.errors import ConfigError


@pytest.fixture
def here(tmp_path):
    (tmp_path / ".git").mkdir()
    return tmp_path


def loaded(here, arguments=None, environ=None):
    said: list[str] = []
    return load(arguments or {}, environ=environ or {}, cwd=here, warn=said.append), said


def test_the_first_source_wins(here):
    (here / "trainbudget.toml").write_text('price = "1 USD/h"\nsample_period = 3\nrun_name = "file"\n')
    settings, said = loaded(
        here, {"price": "3 USD/h"}, {"TRAINBUDGET_PRICE": "2 USD/h", "TRAINBUDGET_SAMPLE_PERIOD": "2", "OTHER": "x"}
    )
    assert settings.price == Money(3.0, "USD")
    assert settings.sample_period_s == 2.0
    assert settings.run_name == "file"
    assert said == []


def test_an_argument_of_none_is_not_given(here):
    settings, _ = loaded(here, {"price": None}, {"TRAINBUDGET_PRICE": "2 USD/h"})
    assert settings.price == Money(2.0, "USD")


def test_files_are_found_upwards_to_the_repositorys_root_and_no_further(here):
    inner = here / "repository" / "src" / "deep"
    inner.mkdir(parents=True)
    (here / "trainbudget.toml").write_text("log = false\n")
    (here / "repository" / ".git").mkdir()
    assert loaded(inner)[0].log is True
    (here / "repository" / "pyproject.toml").write_text("[tool.trainbudget]\nlog = false\nignore = ['eval_share']\n")
    assert loaded(inner)[0].log is False
    assert loaded(inner)[0].ignore == ("eval_share",)
    (here / "repository" / "trainbudget.toml").write_text("[thresholds.hang]\nmost = 5\n")
    assert loaded(inner)[0].thresholds == {"hang.most": 5.0}
    assert loaded(inner)[0].log is True  # one file, not a mixture


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"prize": "2 USD/h"}, "did you mean price"),
        ({"price": "-2 USD/h"}, "negative"),
        ({"price": "2 USD/h", "budget": {"cost": "4 EUR"}}, "never mixed"),
        ({"budget": {"costs": 3}}, "costs"),
        ({"on_exceed": "explode"}, "on_exceed"),
        ({"stop_on": "luck"}, "stop_on"),
        ({"sample_period": 0.001}, "0.05"),
        ({"listen": "nowhere:"}, "listen"),
        ({"step_clock": "sundial"}, "step_clock"),
        ({"backend": "abacus"}, "backend"),
        ({"thresholds": {"a": "b"}}, "table of numbers"),
        ({"log": "perhaps"}, "neither yes nor no"),
    ],
)
def test_a_bad_argument_raises_before_any_training(here, arguments, why):
    with pytest.raises(ConfigError, match=why):
        loaded(here, arguments)


def test_a_bad_variable_is_said_and_the_next_source_is_taken(here):
    (here / "trainbudget.toml").write_text('price = "1 USD/h"\nnonsense = 3\n')
    settings, said = loaded(here, environ={"TRAINBUDGET_PRICE": "cheap", "TRAINBUDGET_LISTEN": "nowhere:"})
    assert settings.price == Money(1.0, "USD")
    assert settings.listen == "127.0.0.1:9837"
    assert len(said) == 3
    assert [any(word in text for text in said) for word in ("nonsense", "cheap", "nowhere")] == [True] * 3


def test_a_broken_file_is_said_and_passed_over(here):
    (here / "trainbudget.toml").write_text("price = \n")
    settings, said = loaded(here)
    assert settings == Settings()
    assert len(said) == 1
    assert "trainbudget.toml" in said[0]


def test_every_field_can_be_set_by_name_and_by_variable(here):
    assert {FIELD_OF.get(name, name) for name in PARSERS} == {f.name for f in fields(Settings)}
    values = {"DISABLED": "1", "BACKEND": "none", "DIR": "/x", "RUN_DIR": "/y", "RECORD_MAX": "1 GiB", "IGNORE": "hang, oom"}
    settings, said = loaded(here, environ={f"TRAINBUDGET_{k}": v for k, v in values.items()})
    assert said == []
    assert (settings.disabled, settings.backend, settings.directory, settings.run_directory) == (True, "none", "/x", "/y")
    assert (settings.record_max_bytes, settings.ignore) == (2**30, ("hang", "oom"))


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        ("8080", ("127.0.0.1", 8080)),
        ("[::1]:9", ("::1", 9)),
        ("off", None),
        ("OFF", None),
        ("", None),
    ],
)
def test_where_to_listen(text, where):
    assert parse_listen(text) == where


@pytest.mark.parametrize("text", ["host:", "1.2.3.4:99999", "a:b", "²", "a:²", "a..b:80", "a" * 64, "127.0.0.1:80\n:1"])
def test_where_nobody_can_listen(text):
    with pytest.raises(ConfigError):
        parse_listen(text)


FINDINGS = {"hang": ("most", "factor"), "eval_share": (), "input_bound": ("info_ratio",)}


def checked(here, arguments=None, environ=None):
    said: list[str] = []
    return load(arguments or {}, environ=environ or {}, cwd=here, warn=said.append, findings=FINDINGS), said


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"ignore": ("eval_shaer",)}, "'eval_shaer' is no finding; did you mean eval_share"),
        ({"ignore": "hang, nonsense"}, "'nonsense' is no finding$"),
        ({"thresholds": {"hang.mots": 3}}, "'hang.mots' is no threshold; did you mean hang.most"),
        ({"thresholds": {"hang": {"facto": 3}}}, "did you mean hang.factor"),
        ({"thresholds": {"info_rati": 3}}, "did you mean info_ratio"),
        ({"thresholds": {"eval_share.most": 3}}, "eval_share has none"),
    ],
)
def test_a_name_that_is_no_finding_is_told_with_the_nearest_one(here, arguments, why):
    with pytest.raises(ConfigError, match=why):
        checked(here, arguments)


def test_a_wrong_name_in_a_file_or_variable_is_said_and_the_right_ones_count(here):
    (here / "trainbudget.toml").write_text("[thresholds]\n'hang.most' = 5\n'hang.mots' = 6\n")
    settings, said = checked(here, environ={"TRAINBUDGET_IGNORE": "eval_shaer, hang"})
    assert (settings.ignore, settings.thresholds) == (("hang",), {"hang.most": 5.0})
    assert len(said) == 2
    assert "trainbudget.toml" in said[0]
    assert "hang.most" in said[0]
    assert "eval_share" in said[1]


def test_a_variable_that_is_none_is_said_with_the_nearest_one(here):
    environ = {"TRAINBUDGET_PRISE": "2 USD/h", "TRAINBUDGET_RUN_ID": "7", "TRAINBUDGET_DEBUG": "1", "OTHER_PRISE": "x"}
    settings, said = checked(here, environ=environ)
    assert settings == Settings()
    assert said == ["environment: TRAINBUDGET_PRISE: no such variable; did you mean TRAINBUDGET_PRICE?; it is ignored"]


def test_a_variable_that_does_not_go_with_an_argument_gives_way(here):
    settings, said = loaded(here, {"budget": "40 EUR"}, {"TRAINBUDGET_PRICE": "2 USD/h"})
    assert (settings.budget.currency, settings.price) == ("EUR", None)
    assert len(said) == 1
    assert "never mixed" in said[0]


def test_every_variable_that_the_sources_speak_of_is_known(here):
    """A variable that is read somewhere must not be called a typing error."""
    sources = Path(trainbudget.__file__).parent.rglob("*.py")
    names = {name for path in sources for name in re.findall(r"\bTRAINBUDGET_[A-Z_]*[A-Z]\b", path.read_text(encoding="utf-8"))}
    assert {"TRAINBUDGET_RUN_ID", "TRAINBUDGET_LISTEN"} <= names
    _, said = loaded(here, environ=dict.fromkeys(names, ""))
    assert said == []
