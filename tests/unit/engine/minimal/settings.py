"""The smallest traces that raise each code of the settings family."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from trainbudget.events import AnyEvent, Lint
from unit.engine.traces import Build


def lint(code: str, setting: str, suggestion: str | None = None) -> list[AnyEvent]:
    build = Build().add(Lint(code=code, setting=setting, suggestion=suggestion)).gpu().start()
    return build.steps(20).end()


MINIMAL: dict[str, Callable[[], list[AnyEvent]]] = {
    "setting_unknown": partial(lint, "setting_unknown", "overlap_communication"),
    "setting_renamed": partial(lint, "setting_renamed", "evaluation_strategy", "eval_strategy"),
    "setting_no_effect": partial(lint, "setting_no_effect", "dataloader_prefetch_factor", "needs dataloader_num_workers > 0"),
}
