"""A plan meets its first steps: what was measured replaces what was assumed, at every length, and the interval narrows."""

from __future__ import annotations

import math

import msgspec

from trainbudget.engine.detect.memory.lengths import interpolated
from trainbudget.engine.detect.memory.standing import standing
from trainbudget.engine.timeline import Timeline
from trainbudget.engine.tracks.device import DeviceTrack
from trainbudget.events import AnyEvent, Bound, BudgetFact, Plan

#: Steps after which the allocator's peak stands for the run at this shape: optimizer states are there from the second on.
CORRECT_AFTER_STEPS = 3
#: What is left uncertain once the same shape has been measured: fragmentation and the allocator's rounding of later batches.
MEASURED_SPREAD = 0.03
#: ... of what a longer batch takes beyond it: at least this, however narrow the plan's own interval. What differs at one length
#: (another kernel, another library) differs at the other too, but not to the byte.
LONGER_SPREAD = 0.10
#: Activations are planned to 3 to 10 % (`memory_prediction.uncertain_parts`). What differs by more than this is no activation
#: that would grow with the batch: it is a constant (workspaces, fragments, another model beside it).
MOST_SCALE = 1.25
#: Below this share of the peak the part that grows is lost in the allocator's rounding, and says nothing of its scale.
LEAST_MOVING_RATIO = 0.1
#: Lengths this close are the same one: the allocator rounds by as much.
SAME_RATIO = 0.97
#: A batch this much longer, or a peak this much higher, than when it was last corrected is worth another look.
LONGER_RATIO, HIGHER_RATIO = 1.2, 1.02
SOURCE = "plan, corrected by measurement"


class CorrectedPlan:
    """Corrects the planned memory once the run has shown its own, and again when longer batches or higher peaks come."""

    def __init__(self) -> None:
        self._budget: Bound | None = None  # as planned
        self._rows: list[list[float]] = []
        self._own: Plan | None = None  # the corrected plan that we sent
        self._at: tuple[float, float] | None = None  # tokens and bytes when it was last corrected

    def look(self, timeline: Timeline) -> list[AnyEvent]:
        """The corrected budget and plan; nothing before, when nothing has changed, and for budgets that somebody gave."""
        self._take(timeline)
        if timeline.steps.session_steps < CORRECT_AFTER_STEPS or (self._budget is None and not self._rows):
            return []
        device = max(timeline.owned, key=lambda d: d.peak_reserved_bytes or 0.0, default=None)
        measured = None if device is None else device.peak_reserved_bytes
        if device is None or not measured:
            return []
        seen = device.memory.tokens.longest_batch
        if self._at is not None and seen <= LONGER_RATIO * self._at[0] and measured <= HIGHER_RATIO * self._at[1]:
            return []
        self._at = seen, measured
        rows = corrected_rows(self._rows, seen, measured) if seen else []
        facts: list[AnyEvent] = []
        budget = self._corrected_budget(device, timeline, rows, measured)
        if budget is not None:
            facts.append(budget)
        if rows and timeline.plan is not None:
            self._own = msgspec.structs.replace(timeline.plan, t_s=timeline.now_s, peak_by_tokens=rows)
            facts.append(self._own)
        return facts

    def _take(self, timeline: Timeline) -> None:
        """What was planned, before any correction of ours; a new plan begins anew."""
        plan = timeline.plan
        if plan is not None and plan is not self._own and plan.peak_by_tokens != (self._own and self._own.peak_by_tokens):
            self._rows, self._own, self._at = plan.peak_by_tokens or [], plan, None
        planned = timeline.budget.get("memory_peak_bytes")
        if planned is None or planned.source not in ("plan", SOURCE):
            self._budget = None
        elif planned.source == "plan" and planned != self._budget:
            self._budget, self._at = planned, None

    def _corrected_budget(
        self, device: DeviceTrack, timeline: Timeline, rows: list[list[float]], measured: float
    ) -> BudgetFact | None:
        """The peak on the device: the longest batch's, or the measured one where all are alike; None = cannot be told."""
        alike = len(self._rows) == 1 and not device.memory.tokens.longest_batch
        if self._budget is None or (self._rows and not rows and not alike):
            return None  # which of the planned lengths was measured is not known
        outside = standing(device, timeline).context
        value = low = high = measured
        if rows:
            _, value, low, high = max(rows, key=lambda r: r[1])
        if value <= measured:
            value, low, high = measured, measured, measured * (1.0 + MEASURED_SPREAD)
        bound = Bound(value=value + outside, low=max(low, measured) + outside, high=high + outside, source=SOURCE)
        return BudgetFact(t_s=timeline.now_s, memory_peak_bytes=bound)


def corrected_rows(rows: list[list[float]], seen_tokens: float, measured_bytes: float) -> list[list[float]]:
    """Planned peaks [[tokens, bytes, low, high]] as they are to be expected after `measured_bytes` at `seen_tokens`.

    The plan's shape is kept. What does not grow with the batch (weights, gradients, optimizer states: the line's value at no
    tokens) is certain; the part that grows is scaled, within what a plan may be off; the rest is an offset.
    """
    if not rows or seen_tokens <= 0.0:
        return []
    if len(rows) == 1 and seen_tokens < SAME_RATIO * rows[0][0]:
        return []  # one length was planned, another was measured
    at_seen = interpolated(rows, seen_tokens)[0]
    still = min(max(0.0, interpolated(rows, 0.0)[0]), at_seen) if len(rows) > 1 else 0.0
    moving = at_seen - still
    scale = 1.0
    if moving >= LEAST_MOVING_RATIO * at_seen:
        scale = min(max((measured_bytes - still) / moving, 1.0 / MOST_SCALE), MOST_SCALE)
    offset = measured_bytes - still - scale * moving
    out = []
    for tokens, *_ in rows:
        planned, low, high = interpolated(rows, tokens)
        value = max(0.0, still + offset + scale * (planned - still))
        longer = max(LONGER_SPREAD, 0.5 * (high - low) / planned if planned > 0.0 else 0.0)
        spread = math.hypot(MEASURED_SPREAD * measured_bytes, longer * max(0.0, value - measured_bytes))
        out.append([tokens, value, max(0.0, value - spread), value + spread])
    return out
