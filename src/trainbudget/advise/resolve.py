"""Finding -> the one or two changes that would stop it, in names the installed version accepts."""

from __future__ import annotations

import string
from typing import Any

import msgspec

from trainbudget.advise import installed as installation
from trainbudget.advise.installed import Installed
from trainbudget.advise.levers import LEVERS, Lever, Setting
from trainbudget.advise.preconditions import sensible
from trainbudget.advise.savings import saving_of
from trainbudget.advise.values import Run, word, words_for
from trainbudget.engine.detect import RECORDS
from trainbudget.engine.report import Report
from trainbudget.findings import Advice, Finding

#: Advice beyond this is a list nobody reads.
MOST = 2

#: Where the cause tells which of the code's levers helps, best first. A cause that no lever cures has none.
BY_CAUSE: dict[str, tuple[str, ...]] = {
    "input_bound/workers": ("L01", "L02"),
    "input_bound/cpu": ("L04",),  # more threads do not help where every core is busy
    "input_bound/storage": ("L04", "L02"),
    "input_bound/cold_cache": (),  # over with the first epoch
    "input_bound/tokenize": ("L04",),
    "input_bound/burst": ("L02", "L01"),
    "oom/longest_batch": ("L37", "L06"),
    "oom/leak": (),
    "oom/fragmentation": ("L28",),
    "oom/foreign_memory": (),
    "oom/optimizer_state": ("L19", "L22"),
    "oom/eval_accumulation": ("L30",),
    "oom/checkpoint_gather": ("L31",),
    "oom/true_capacity": ("L09", "L10"),
    "oom/pending_stream_frees": ("L28",),
    "oom/epoch_end": (),
    "oom/sibling_ranks": (),
    "straggler/input": ("L01",),
    "straggler/clock": (),
    "straggler/unknown": (),
    "slow_kernel_path/attention": ("L16",),
    "slow_kernel_path/optimizer": ("L18",),
    "slow_kernel_path/logits": ("L17",),
}

#: `wasted_spend`: by the bucket that holds most of the waste. What lies in `other` nobody knows, so nothing is advised for it.
BY_BUCKET: dict[str, tuple[str, ...]] = {
    "data_wait": ("L01", "L02"),
    "padding": ("L06", "L07"),
    "optimizer_offload": ("L23",),
    "host_gap": ("L15", "L43"),
    "idle": ("L35",),
}

#: `oom_next_phase`: what makes the phase that comes need less.
BY_PHASE: dict[str, tuple[str, ...]] = {"save": ("L31", "L22"), "eval": ("L30",), "resume": ("L22", "L09")}

_PACKAGE = {"TrainingArguments": "transformers", "Trainer": "lightning", "DataLoader": "torch"}


def advise(finding: Finding, report: Report, *, installed: Installed | None = None) -> tuple[Advice, ...]:
    """The best one or two levers for a finding, best first; empty where none is known or nothing is left to change.

    Args:
        installed: what the frameworks here accept; None reads this interpreter's. Where a framework is not installed, its
            settings are named as its newest version has them and marked as not checked.
    """
    if finding.code in ("setting_unknown", "setting_renamed", "setting_no_effect"):
        return _from_lint(finding)
    known = installation.installed() if installed is None else installed
    run = Run(finding, report)
    words = words_for(run)
    out = []
    for lever in levers_for(finding):
        typed = _typed(lever, run, known, words) if sensible(lever, run) else None
        if typed is not None:
            setting, text = typed
            out.append(Advice(lever=lever.name, setting=text, saving=_saving(finding, lever, setting, report)))
        if len(out) == MOST:
            break
    return tuple(out)


def advised(report: Report, *, installed: Installed | None = None) -> Report:
    """The report with every finding's advice worked out anew: at the end of a run savings are larger than at the raise."""
    findings = tuple(msgspec.structs.replace(f, advice=advise(f, report, installed=installed)) for f in report.findings)
    return msgspec.structs.replace(report, findings=findings)


def levers_for(finding: Finding) -> tuple[Lever, ...]:
    """The levers of what the finding says is the matter: its cause, its evidence, else its code."""
    ids = BY_CAUSE.get(finding.name)
    what = finding.evidence.get("what")
    if finding.code == "oom_next_phase":
        ids = BY_PHASE.get(finding.phase or "", ())
    if what == "effective_batch":  # a question of the learning rate, not of the memory
        ids = ()
    if ids is None and finding.code == "nothing_learned":
        ids = ("L34",) if str(what).endswith("not_finite") else ()  # stopping a run that never learned is no saving
    elif ids is None and finding.code == "wasted_spend":
        buckets = finding.evidence.get("buckets")
        ids = BY_BUCKET.get(next(iter(buckets), ""), ()) if isinstance(buckets, dict) else ()
    elif ids is None:
        record = RECORDS.get(finding.code)
        ids = record.levers if record is not None else ()
    return tuple(LEVERS[i] for i in ids if i in LEVERS)


def _typed(lever: Lever, run: Run, known: Installed, words: dict[str, str | None]) -> tuple[Setting, str] | None:
    """A way to type it that the installation accepts and that changes something: the first with most numbers known."""
    framework = run.report.header.framework or ""
    settings = lever.settings.get(framework) or lever.settings.get("loop", ())
    possible: list[tuple[Setting, str | None]] = []
    for setting in settings:
        if setting.codes and run.finding.code not in setting.codes:
            continue
        name = _accepted(setting, known)
        if (name is None and setting.names) or _done(setting, run.settings):
            continue
        possible.append((setting, name))
    if not possible:
        return None
    setting, name = min(possible, key=lambda pair: sum(words[w] is None for w in _placeholders(pair[0])))
    return setting, _text(setting, name, run, known, words)


def _placeholders(setting: Setting) -> list[str]:
    return [field for _, field, _, _ in string.Formatter().parse(setting.text) if field and field != "name"]


def _accepted(setting: Setting, known: Installed) -> str | None:
    """The first of the setting's names that the installed version has; the newest one where that cannot be looked up."""
    if not setting.names:
        return None
    if not known.knows(setting.kind):
        return setting.names[0]
    if setting.choice is not None and not known.takes(setting.choice):
        return None
    return next((name for name in setting.names if known.has(setting.kind, name)), None)


def _done(setting: Setting, settings: dict[str, Any]) -> bool:
    """Whether the run has it already. A setting that is not recorded may still be changed."""
    return any(name in settings and settings[name] in setting.done for name in setting.names)


def _text(setting: Setting, name: str | None, run: Run, known: Installed, words: dict[str, str | None]) -> str:
    text = setting.text.format(name=name, **{w: value if value is not None else word(w) for w, value in words.items()})
    notes = []
    now = next((run.settings[n] for n in setting.names if n in run.settings), None)
    if now is not None and not isinstance(now, (dict, list)):
        notes.append(f"now {now}")
    if setting.names and not known.knows(setting.kind):
        notes.append(f"not checked: {_PACKAGE[setting.kind]} is not installed here")
    return f"{text} ({'; '.join(notes)})" if notes else text


def _saving(finding: Finding, lever: Lever, setting: Setting, report: Report) -> dict[str, Any]:
    saving = saving_of(finding, lever, report)
    costs = lever.side_effect if setting.costs is None else setting.costs
    if costs and costs not in ("none", "none known"):
        saving["side_effect"] = costs
    return saving


def _from_lint(finding: Finding) -> tuple[Advice, ...]:
    suggestion = finding.evidence.get("suggestion")
    if finding.code == "setting_no_effect":  # the suggestion is a reason there, which the summary gives
        return ()
    return (Advice(lever="settings", setting=str(suggestion)),) if suggestion else ()
