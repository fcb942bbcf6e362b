"""Settings from a file and from the environment: what cannot be used there is said, and the next source is taken."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from trainbudget.budget import did_you_mean
from trainbudget.config.reading import PARSERS

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - exercised on Python 3.10 only
    import tomli as tomllib

#: Code -> names of its thresholds.
FindingNames = Mapping[str, Collection[str]]
_VARIABLES = {
    **{f"TRAINBUDGET_{name.upper()}": name for name in PARSERS},
    "TRAINBUDGET_DIR": "directory",
    "TRAINBUDGET_RUN_DIR": "run_directory",
}
#: Variables that are no settings: of a job, of the planner, of the Compose stack, of the project's own tests.
_OTHER_VARIABLES = frozenset(
    f"TRAINBUDGET_{name}"
    for name in (
        *("RUN_ID", "DEBUG", "INSTANCE", "PRICING"),
        *("PLAN_DEBUG", "PLAN_SCRATCH", "LAUNCHED_FSDP", "LAUNCHED_DEEPSPEED"),
        *("PORT", "TARGETS"),
        *("FIELD_TRACES", "HEALTHY_HOURS", "SWEEP_EVERY", "TEST_EXAMPLES", "UPDATE_GOLDEN"),
    )
)


def known_names(key: str, parsed: Any, findings: FindingNames | None) -> tuple[Any, list[str]]:
    """Of `ignore` and `thresholds` what names a finding, and a sentence for each name that does not."""
    if findings is None or key not in ("ignore", "thresholds"):
        return parsed, []
    if key == "ignore":
        wrong = [name for name in parsed if name not in findings]
        said = [f"ignore: {name!r} is no finding{did_you_mean(name, findings)}" for name in wrong]
        return tuple(name for name in parsed if name in findings), said
    both = {f"{code}.{name}" for code, names in findings.items() for name in names}
    known = both | {name for names in findings.values() for name in names}
    said = []
    for name in parsed:
        if name not in known:
            code, dot, _ = name.partition(".")
            candidates = {n for n in both if n.startswith(f"{code}.")} if dot and code in findings else known
            of_code = "" if candidates is known or candidates else f": {code} has none"
            said.append(f"thresholds: {name!r} is no threshold{of_code}{did_you_mean(name, candidates)}")
    return {name: value for name, value in parsed.items() if name in known}, said


def from_environ(environ: Mapping[str, str], warn: Callable[[str], None]) -> dict[str, Any]:
    """Variables that name a setting; `TRAINBUDGET_DIR`, `TRAINBUDGET_RUN_DIR` and others of their own are among them."""
    for variable in sorted(environ):
        if variable.startswith("TRAINBUDGET_") and variable not in _VARIABLES and variable not in _OTHER_VARIABLES:
            warn(f"environment: {variable}: no such variable{did_you_mean(variable, _VARIABLES)}; it is ignored")
    return {key: environ[name] for name, key in _VARIABLES.items() if environ.get(name, "").strip() != ""}


def from_file(start: Path | None, warn: Callable[[str], None]) -> dict[str, Any]:
    """`trainbudget.toml` in the directory or its parents up to the repository's root, else `[tool.trainbudget]`."""
    if start is None:
        return {}
    folders = [start, *start.parents]
    for place, folder in enumerate(folders):
        if os.path.exists(folder / ".git"):  # pathlib's own raises where a folder may not be entered
            folders = folders[: place + 1]
            break
    for name, table in (("trainbudget.toml", ()), ("pyproject.toml", ("tool", "trainbudget"))):
        for folder in folders:
            path = folder / name
            if not os.path.isfile(path):
                continue
            try:
                content: Any = tomllib.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError, RecursionError) as err:
                if name == "trainbudget.toml":
                    why = "it is nested too deeply" if isinstance(err, RecursionError) else err
                    warn(f"{path}: {why}; it is ignored")
                continue
            for key in table:
                content = content.get(key, {}) if isinstance(content, dict) else {}
            if content and isinstance(content, Mapping):
                return dict(content)
    return {}
