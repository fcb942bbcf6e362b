"""Which parameters ZeRO 3 holds gathered (DeepSpeed 0.19, ``runtime/zero/partitioned_param_coordinator.py``).

Every module that runs, with parameters or without, first waits for its own parameters and then starts to fetch those of later
modules, in the order of the steps before. Parameters fetched together arrive in one flat buffer and are copied out of it when the
first of them is needed; the flat buffer dies only when the last of them is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from trainbudget.plan.ledger import Ledger
from trainbudget.plan.sharding.strategy import ceil_div
from trainbudget.plan.tracing.trace import Category, Parameter

GATHER = "all_gather"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How far ahead parameters are fetched and how long they are kept, in elements; DeepSpeed's ``stage3_`` options."""

    prefetch_bucket_size: int
    max_live_parameters: int
    max_reuse_distance: int


class _Gather:
    """Parameters in flight together."""

    def __init__(self, parameters: list[int], flat: int | None) -> None:
        self.parameters = parameters
        self.flat = flat
        self.awaited = set(parameters)
        self.copied = len(parameters) == 1  # a single parameter is gathered in place


class Coordinator:
    """Gathered parameters of one rank from forward to backward.

    Args:
        uses: the unit of every module that runs in a step, forward and backward, in order.
        persistent: parameters that nobody releases between optimizer steps.
    """

    def __init__(
        self,
        ledger: Ledger,
        parameters: list[Parameter],
        unit_parameters: list[list[int]],
        uses: list[int],
        persistent: set[int],
        *,
        world: int,
        item_bytes: int,
        reach: Reach,
    ) -> None:
        self._ledger = ledger
        self._parameters = parameters
        self._units = unit_parameters
        self._uses = uses
        self._persistent = persistent
        self._world = world
        self._item = item_bytes
        self._reach = reach
        self._passed = [0]  # elements used before each step
        self._steps_of: dict[int, list[int]] = {}
        for step, unit in enumerate(uses):
            self._passed.append(self._passed[-1] + sum(parameters[i].elements for i in unit_parameters[unit]))
            for i in unit_parameters[unit]:
                self._steps_of.setdefault(i, []).append(step)
        self._full: dict[int, int | None] = {}  # parameters whose whole values are there
        self._inflight: dict[int, _Gather] = {}
        self.begin()

    def begin(self) -> None:
        """The forward of the whole model begins."""
        for gather in {id(g): g for g in self._inflight.values()}.values():
            self._ledger.free(gather.flat)
        self._inflight = {}
        self._live_elements = 0  # those still there from the micro-step before are not counted
        self._step = 0
        self._queue = deque((i, step) for step, unit in enumerate(self._uses) for i in self._units[unit])
        self._fetched_for: dict[int, int] = {}  # parameter -> last step it has been fetched for
        self._users: dict[int, set[int]] = {}
        self._in_backward: dict[int, None] = {}  # units between their fetch and release in backward

    def _elements(self, parameter: int) -> int:
        return self._parameters[parameter].elements

    def _padded_bytes(self, parameter: int) -> int:
        return ceil_div(self._elements(parameter), self._world) * self._world * self._item

    def _there(self, parameter: int) -> bool:
        return parameter in self._full or parameter in self._inflight

    def _gather(self, wanted: Iterable[int]) -> None:
        together = [i for i in wanted if not self._there(i)]
        if not together:
            return
        size = sum(self._padded_bytes(i) for i in together)
        gather = _Gather(together, None)
        if gather.copied:
            self._full[together[0]] = self._ledger.malloc(size, Category.PARAMETERS, GATHER)
        else:
            gather.flat = self._ledger.malloc(size, Category.COMMUNICATION, GATHER)
        for i in together:
            self._inflight[i] = gather
            self._live_elements += self._elements(i)

    def _wait(self, parameter: int) -> None:
        gather = self._inflight.pop(parameter, None)
        if gather is None:
            return
        if not gather.copied:
            gather.copied = True
            for i in gather.parameters:
                self._full[i] = self._ledger.malloc(self._elements(i) * self._item, Category.PARAMETERS, GATHER)
        gather.awaited.discard(parameter)
        if not gather.awaited:
            self._ledger.free(gather.flat)

    def fetch(self, unit: int, *, backward: bool) -> None:
        """A module is about to run."""
        own = self._units[unit]
        if backward:
            self._in_backward[unit] = None
        self._gather(own)
        for i in own:
            self._users.setdefault(i, set()).add(unit)
            self._wait(i)
        missing = {i for i in own if self._fetched_for.get(i, -1) < self._step}
        while self._queue and missing:
            i, step = self._queue.popleft()
            self._fetched_for[i] = step
            missing.discard(i)
        self._prefetch()
        self._step += 1

    def _prefetch(self) -> None:
        room = min(self._reach.max_live_parameters - self._live_elements, self._reach.prefetch_bucket_size)
        ahead: list[int] = []
        elements = 0
        while self._queue and elements < room:
            i, step = self._queue.popleft()
            self._fetched_for[i] = max(self._fetched_for.get(i, -1), step)
            if not self._there(i) and i not in ahead:
                ahead.append(i)
                elements += self._elements(i)
        self._gather(sorted(ahead))

    def release(self, unit: int, *, backward: bool) -> None:
        """A module has run: its parameters go unless they are used again soon."""
        far = {i for i in self._units[unit] if i not in self._persistent and self._fetched_for.get(i, -1) <= self._step}
        window_end = bisect_left(self._passed, self._passed[self._step] + self._reach.max_reuse_distance, lo=self._step)
        far = {i for i in far if self._next_use(i) >= window_end}
        if backward:
            self._in_backward.pop(unit, None)
        for i in self._units[unit]:
            self._users.get(i, set()).discard(unit)
            if i in far:
                self._drop(i)

    def _next_use(self, parameter: int) -> int:
        """Step of the parameter's next use; behind the last step if there is none."""
        steps = self._steps_of[parameter]
        place = bisect_left(steps, self._step)
        return steps[place] if place < len(steps) else len(self._passed)

    def _drop(self, parameter: int) -> None:
        if self._users.get(parameter) or parameter in self._inflight or parameter not in self._full:
            return
        self._ledger.free(self._full.pop(parameter))
        self._live_elements -= self._elements(parameter)

    def end_backward(self) -> None:
        """Modules whose inputs need no gradient were never told that their backward had run."""
        for unit in list(self._in_backward):
            self._in_backward.pop(unit)
            for i in self._units[unit]:
                self._users.get(i, set()).discard(unit)
                if i not in self._persistent:
                    self._drop(i)

    def release_all(self) -> None:
        """The optimizer step begins: persistent parameters go too."""
        self.begin()
        for handle in self._full.values():
            self._ledger.free(handle)
        self._full = {}

    def gather_persistent(self) -> None:
        """The optimizer step ends."""
        for i in self._persistent:
            if i not in self._full:
                self._full[i] = self._ledger.malloc(self._padded_bytes(i), Category.PARAMETERS)
