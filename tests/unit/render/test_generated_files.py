"""What is committed is what the catalogue says, and the YAML writer writes what a reader reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainbudget.render import generated
from trainbudget.render.__main__ import main
from trainbudget.render.yaml_text import to_yaml

ROOT = Path(__file__).resolve().parents[3]
yaml = pytest.importorskip("yaml")


@pytest.mark.parametrize("name", sorted(generated()))
def test_committed_files_are_fresh(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == generated()[name](), "run `python -m trainbudget.render`"


def test_writing_twice_changes_nothing_and_check_names_what_is_stale(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    assert main(["--root", str(tmp_path), "--check"]) == 3
    assert "stale: grafana/rules/alerts.yaml" in capsys.readouterr().out
    assert main(["--root", str(tmp_path)]) == 0
    assert main(["--root", str(tmp_path), "--check"]) == 0
    (tmp_path / "docs" / "alerts.md").write_text("edited")
    capsys.readouterr()
    assert main(["--root", str(tmp_path), "--check"]) == 3
    assert capsys.readouterr().out == "stale: docs/alerts.md\n"


def test_outside_a_checkout_it_says_so(tmp_path: Path) -> None:
    assert main(["--root", str(tmp_path)]) == 2


@pytest.mark.parametrize(
    "value",
    [
        {"a": 1, "b": [1, 2.5, None, True], "c": {"d": "x y"}, "e": [], "f": {}},
        {"expr": 'sum(x{a="b"})\nor y', "quote": 'a "b" c', "yes": "yes", "no": "off", "number": "12", "colon": "a: b"},
        {"list": [{"a": 1, "b": {"c": [1, {"d": "e"}]}}, {"a": 2}], "spaces": "  lead", "tail": 'x"\n', "empty": ""},
        {"unicode": "名前 °C", "hash": "# no comment", "brace": "{{ $labels.run }}", "dash": "- a", "star": "*x", "tilde": "~"},
    ],
)
def test_yaml_reads_back(value: Any) -> None:
    read = yaml.safe_load(to_yaml(value, comment="a comment\nof two lines"))
    assert read == value


@pytest.mark.parametrize("name", [n for n in generated() if n.endswith((".yaml", ".yml"))])
def test_generated_yaml_is_yaml(name: str) -> None:
    assert list(yaml.safe_load_all(generated()[name]()))


def test_kubernetes_objects_hold_the_same_rules_and_dashboards() -> None:
    import json

    files = generated()
    rule = yaml.safe_load(files["grafana/stack/kubernetes/prometheusrule.yaml"]())
    groups = [yaml.safe_load(files[f"grafana/rules/{n}.yaml"]())["groups"][0] for n in ("thresholds", "recording", "alerts")]
    assert rule["spec"]["groups"] == groups
    data = yaml.safe_load(files["grafana/stack/kubernetes/dashboards.yaml"]())["data"]
    assert json.loads(data["trainbudget-fleet.json"]) == json.loads(files["grafana/dashboards/fleet.json"]())
