"""What may be started once more: a script or a module of the user's, and nothing that runs others' code."""

from __future__ import annotations

import sysconfig
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from trainbudget.live.own_script import OwnScript, own_script


def main_module(path: Path | None, module: str | None = None) -> ModuleType:
    main = ModuleType("__main__")
    if path is not None:
        main.__file__ = str(path)
    main.__spec__ = ModuleSpec(module, None) if module is not None else None
    return main


def test_a_script_with_its_arguments(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("")
    found = own_script(main_module(script), ["--epochs", "3"])
    assert found == OwnScript(script=str(script), arguments=("--epochs", "3"))


@pytest.mark.parametrize(("name", "module"), [("lab.train", "lab.train"), ("lab.__main__", "lab")])
def test_a_module_is_started_by_its_name(tmp_path, name, module):
    assert own_script(main_module(tmp_path / "train.py", name), []) == OwnScript(module=module)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (None, "a prompt or a notebook"),
        (Path(sysconfig.get_paths()["purelib"]) / "ipykernel_launcher.py", "not by a script of its own"),
        (Path(sysconfig.get_paths()["stdlib"]) / "runpy.py", "not by a script of its own"),
        (Path("/nowhere/train.py"), "no script that could be run again"),
        (Path("/nowhere/train"), "no script that could be run again"),
    ],
)
def test_what_cannot_be_started_again_says_why(path, message):
    with pytest.raises(ValueError, match=message):
        own_script(main_module(path), [])


def test_under_pytest_there_is_nothing_to_start():
    with pytest.raises(ValueError, match="it was started "):  # by pytest, or without a file by one of its workers
        own_script()


@pytest.mark.parametrize("path", [("scripts", "pytest"), ("purelib", "pytest/__main__.py")])
def test_a_tool_is_named(path):
    folder, file = path
    with pytest.raises(ValueError, match="started by pytest,"):
        own_script(main_module(Path(sysconfig.get_paths()[folder]) / file), [])
