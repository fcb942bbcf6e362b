"""How this process was started, so that the same script can be run once more up to its training."""

from __future__ import annotations

import os
import sys
import sysconfig
from dataclasses import dataclass
from types import ModuleType


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnScript:
    """A script's path, or a module's name as in `python -m MODULE`; and the arguments."""

    script: str | None = None
    module: str | None = None
    arguments: tuple[str, ...] = ()


def own_script(main: ModuleType | None = None, arguments: list[str] | None = None) -> OwnScript:
    """What was started.

    Args:
        main, arguments: `__main__` and the words after it; this process's own by default.

    Raises:
        ValueError: nothing that could be started again by itself: a prompt, a notebook, a tool that runs others' code.
    """
    main = sys.modules.get("__main__") if main is None else main
    path = getattr(main, "__file__", None)
    if path is None:
        raise ValueError("it was started from a prompt or a notebook, not by a script")
    if _is_installed(path):
        raise ValueError(f"it was started by {_tool(path)}, not by a script of its own")
    words = tuple(sys.argv[1:] if arguments is None else arguments)
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return OwnScript(module=spec.name.removesuffix(".__main__"), arguments=words)
    if not path.endswith(".py") or not os.path.isfile(path):
        raise ValueError(f"{os.path.basename(path)} is no script that could be run again")
    return OwnScript(script=os.path.abspath(path), arguments=words)


def _tool(path: str) -> str:
    """The name of what was started: `pytest` of `bin/pytest` and of `pytest/__main__.py`."""
    name = os.path.basename(path).removesuffix(".py")
    return os.path.basename(os.path.dirname(path)) if name == "__main__" else name


def _is_installed(path: str) -> bool:
    """Whether a file belongs to the interpreter or an installed package: pytest, a notebook's kernel, a cluster's worker."""
    where = os.path.realpath(path)
    names = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
    folders = {os.path.realpath(folder) for name in names if (folder := sysconfig.get_paths().get(name))}
    return any(where.startswith(folder + os.sep) for folder in folders) or "site-packages" in where.split(os.sep)
