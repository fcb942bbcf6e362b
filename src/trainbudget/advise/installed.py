"""What the installed frameworks accept: read from their source files, so that nothing heavy is imported.

`TrainingArguments` has its fields and the names of optimizers in one file, Lightning's `Trainer` and torch's `DataLoader`
their arguments in one signature each. A file that is missing or looks different is "not known", never "not accepted".
"""

from __future__ import annotations

import ast
import importlib.util
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path

#: kind of setting -> (package, file in it, class): where its arguments stand.
_WHERE = {
    "TrainingArguments": ("transformers", "training_args.py", "TrainingArguments"),
    "Trainer": ("lightning", "pytorch/trainer/trainer.py", "Trainer"),
    "DataLoader": ("torch", "utils/data/dataloader.py", "DataLoader"),
}
_ALSO = {"Trainer": ("pytorch_lightning", "trainer/trainer.py", "Trainer")}
PACKAGES = ("transformers", "lightning", "torch", "accelerate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """Names each kind of setting accepts; a kind that is absent is not installed here, or not readable.

    Attributes:
        accepts: kind -> names of arguments.
        optimizers: values of `TrainingArguments.optim`; None = not known.
        choices: other values found as words in the class's file, for `Setting.choice`; None = not known.
        versions: package -> version.
    """

    accepts: dict[str, frozenset[str]]
    optimizers: frozenset[str] | None = None
    choices: frozenset[str] | None = None
    versions: dict[str, str]

    def knows(self, kind: str) -> bool:
        """Whether this kind of setting can be checked at all."""
        return kind in self.accepts

    def has(self, kind: str, name: str) -> bool:
        return name in self.accepts.get(kind, frozenset())

    def takes(self, choice: str) -> bool:
        """Whether a value is one the installed version knows (True where that cannot be told)."""
        known = (self.optimizers or frozenset()) | (self.choices or frozenset())
        return not known or choice in known


NOTHING = Installed(accepts={}, versions={})


@lru_cache(maxsize=1)
def installed() -> Installed:
    """What this interpreter has. Read once; files do not change under a running process."""
    accepts: dict[str, frozenset[str]] = {}
    optimizers = choices = None
    for kind, place in _WHERE.items():
        tree = _tree(*place[:2])
        if tree is None and kind in _ALSO:
            tree = _tree(*_ALSO[kind][:2])
        names = arguments_of(tree, place[2]) if tree is not None else None
        if names:
            accepts[kind] = names
        if kind == "TrainingArguments" and tree is not None:
            optimizers, choices = _enumeration(tree, "OptimizerNames"), _choices(tree)
    return Installed(accepts=accepts, optimizers=optimizers, choices=choices, versions=_versions())


def arguments_of(tree: ast.Module, name: str) -> frozenset[str] | None:
    """Names a class takes: the fields of a dataclass, else the arguments of `__init__`. None where the class is not there."""
    for node in tree.body:
        if not isinstance(node, ast.ClassDef) or node.name != name:
            continue
        fields = {n.target.id for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
        for function in node.body:
            if isinstance(function, ast.FunctionDef) and function.name == "__init__":
                arguments = (*function.args.args, *function.args.kwonlyargs)
                return frozenset(a.arg for a in arguments if a.arg != "self")
        return frozenset(fields)
    return None


def _tree(package: str, file: str) -> ast.Module | None:
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / file
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None


def _enumeration(tree: ast.Module, name: str) -> frozenset[str] | None:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            values = {
                n.value.value
                for n in node.body
                if isinstance(n, ast.Assign) and isinstance(n.value, ast.Constant) and isinstance(n.value.value, str)
            }
            return frozenset(values)
    return None


def _choices(tree: ast.Module) -> frozenset[str]:
    """All words in lists under a key `choices`: what argument parsers of the file accept."""
    words: set[str] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Dict):
            continue
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == "choices" and isinstance(value, ast.List):
                words |= {e.value for e in value.elts if isinstance(e, ast.Constant) and isinstance(e.value, str)}
    return frozenset(words)


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
