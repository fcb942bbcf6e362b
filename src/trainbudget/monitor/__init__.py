"""`Monitor`: what adapters and plain loops talk to. Hooks append facts and return; everything else is on other threads.

No exception of ours reaches the caller: each public hook is `harmless`. Exceptions of the user's own code inside
`step()`, `phase()` and `batches()` pass through untouched.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from trainbudget.clock import Clock
from trainbudget.events import AnyEvent, BudgetFact, Model, Plan
from trainbudget.live.assembly import with_gpu
from trainbudget.live.auto_plan import AutoPlan
from trainbudget.live.harmless import harmless
from trainbudget.live.process_life import Watched
from trainbudget.monitor.steps import Steps

_OWN_LOOP = (
    "no plan for this run (a loop of its own is not planned by itself): its budget is learned from the first steps; "
    "`trainbudget plan PLAN.toml --json > plan.json` and plan='plan.json' give it one"
)
#: The planner's thread waits this long for the driver to tell its devices.
READY_S = 10.0


class Monitor(Steps):
    """A live budget for one training run; see `trainbudget.config.Settings` for every argument.

    Example::

        with trainbudget.Monitor(budget=trainbudget.Budget(cost="40 USD"), price="2.49 USD/h") as monitor:
            for batch in monitor.batches(loader):
                with monitor.step(tokens=batch.numel()):
                    ...

    Raises:
        ConfigError: (a ValueError) an argument is unusable. Nothing else is ever raised.
    """

    def __init__(
        self, *, framework: str = "loop", clock: Clock | None = None, steps_total: int | None = None, **arguments: Any
    ) -> None:
        self._set_up(framework, clock, steps_total, arguments)
        if self.settings.strict_port and not self._inert:
            from trainbudget.live.start import require_free_port

            require_free_port(self.settings.listen)

    def _set_up(self, framework: str, clock: Clock | None, steps_total: int | None, arguments: dict[str, Any]) -> None:
        super()._set_up(framework, clock, steps_total, arguments)
        self._auto_plan = AutoPlan(self.fact) if self.settings.plan == "auto" else None

    def __enter__(self) -> Monitor:
        self.start()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            self.exception(error)
        else:
            self.train_end()
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickled or deep-copied monitor is a fresh one, not started: threads and files stay with the original."""
        return (_fresh, (self._arguments, self._runs_in))

    # --- what else is known

    @harmless
    def budget(self, fact: BudgetFact) -> None:
        self.fact(fact)

    @harmless
    def fact(self, fact: AnyEvent) -> None:
        """Any other fact, stamped now (plan, model, lint)."""
        fact.t_s = self._t_s()
        self._put(fact)

    @harmless
    def model(self, **what: Any) -> None:
        self._put(Model(t_s=self._t_s(), **what))

    @property
    def wants_plan(self) -> bool:
        """Whether an adapter should describe its run to `plan_from`."""
        return self._auto_plan is not None and not self._auto_plan.started

    @harmless
    def plan_from(self, request: Callable[[], Mapping[str, Any]]) -> None:
        """With `plan="auto"`: have the run planned once, in a child process. See `live.auto_plan.AutoPlan.start`."""
        feeder = self._feeder
        if self._auto_plan is None or feeder is None:
            return
        if self.run.ranks.rank:
            self._auto_plan.decline()  # rank 0 plans for all: they share the machine
            return

        def with_card() -> Mapping[str, Any]:
            feeder.sampler.ready.wait(READY_S)
            return with_gpu(request(), feeder.sampler.gpus, self.settings, self.run.ranks)

        self._auto_plan.start(with_card)

    @harmless
    def forget_plan(self) -> None:
        """What was planned is not what is trained any more, for example at another batch size."""
        if self._auto_plan is not None:
            self._auto_plan.stop()
        if self.settings.plan is not None:
            self.fact(Plan())

    def _begin_training(self, **what: Any) -> None:
        super()._begin_training(**what)
        if self.wants_plan and self.run.framework == "loop" and self._auto_plan is not None:
            self._auto_plan.decline()
            self._counters.note(logging.INFO, _OWN_LOOP)

    def _drop_references(self) -> None:
        super()._drop_references()
        if self._auto_plan is not None:
            self._auto_plan.stop()


def _fresh(arguments: Mapping[str, Any], origin: Watched | None = None) -> Monitor:
    own = {"framework": arguments["framework"], "steps_total": arguments["steps_total"]}
    monitor = Monitor.__new__(Monitor)
    monitor._set_up(clock=None, arguments={key: value for key, value in arguments.items() if key not in own}, **own)
    monitor._origin = origin
    return monitor
