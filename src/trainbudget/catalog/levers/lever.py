"""What a lever is: one change that saves time, memory or money, and how each framework spells it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: Where a setting is typed. The first three are looked up in the installed version, the others are code and shell.
KINDS = ("TrainingArguments", "Trainer", "DataLoader", "code", "environment", "launcher")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One way to type it.

    Attributes:
        kind: one of `KINDS`.
        names: the argument's names, newest first; the first one that the installed version accepts is used. Empty for code.
        text: as typed; `{name}` is the accepted name, other `{words}` are worked out from the run.
        choice: a value that the installed version must know besides the name (`optim`).
        codes: only for these findings; empty = for all that the lever helps.
        done: the setting's values with which there is nothing left to change.
        costs: its own side effect, where it has another one than the lever; "" = none.
    """

    kind: str
    text: str
    names: tuple[str, ...] = ()
    choice: str | None = None
    codes: tuple[str, ...] = ()
    done: tuple[object, ...] = ()
    costs: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """One record.

    Attributes:
        id: as findings name it.
        name: a word for people and machines.
        changes: what it does, in one sentence.
        settings: framework -> ways to type it, best first.
        buckets: what it attacks in the ledger; a saving is never larger than what they hold.
        share: the part of them that can be saved at most; None = not known.
        bound: where that bound comes from, in words.
        precondition: what must hold for it to make sense.
        side_effect: what it costs.
        verify: what must change afterwards if it worked.
        source: who says so.
    """

    id: str
    name: str
    changes: str
    settings: Mapping[str, tuple[Setting, ...]] = field(default_factory=dict)
    buckets: tuple[str, ...] = ()
    share: float | None = None
    bound: str = ""
    precondition: str = ""
    side_effect: str = ""
    verify: str = ""
    source: str = ""


def argument(names: str | tuple[str, ...], text: str = "{name}", **more: object) -> Setting:
    """A field of TrainingArguments."""
    return _of("TrainingArguments", names, text, more)


def trainer(names: str | tuple[str, ...], text: str = "Trainer({name})", **more: object) -> Setting:
    """An argument of Lightning's Trainer."""
    return _of("Trainer", names, text, more)


def loader(names: str | tuple[str, ...], text: str, **more: object) -> Setting:
    """An argument of torch's DataLoader."""
    return _of("DataLoader", names, text, more)


def code(text: str, **more: object) -> Setting:
    return Setting(kind="code", text=text, **more)  # type: ignore[arg-type]


def environment(text: str, **more: object) -> Setting:
    return Setting(kind="environment", text=text, **more)  # type: ignore[arg-type]


def _of(kind: str, names: str | tuple[str, ...], text: str, more: dict[str, object]) -> Setting:
    return Setting(kind=kind, names=(names,) if isinstance(names, str) else names, text=text, **more)  # type: ignore[arg-type]
