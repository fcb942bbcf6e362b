"""The trace of a deep model from the traces of the same model with few layers, and with one more.

The layers of a transformer are alike: what one layer more adds to a trace, every further one adds too. This is exact or not done:
`deeper` answers None where two traces do not determine the third. Plain data, no torch.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import msgspec

from trainbudget.plan.layers.alignment import aligned
from trainbudget.plan.layers.tokens import Counted
from trainbudget.plan.layers.writing import EventWriter, write_parameters
from trainbudget.plan.tracing.trace import OperatorCost, Trace


def deeper(shallow: Trace, one_more: Trace, layers: int) -> Trace | None:
    """The trace with `layers` layers more than `shallow`; None where the two traces do not determine it.

    Args:
        shallow: with at least two layers, so that a layer between two layers is seen.
        one_more: of the same configuration with one layer more.
    """
    if not _alike(shallow, one_more):
        return None
    few, more = Counted(shallow), Counted(one_more)
    events = aligned(few.tokens(), more.tokens())
    parameters = aligned(few.parameters(), more.parameters())
    operators = _operators(shallow.operators, one_more.operators, layers)
    if events is None or parameters is None or operators is None:
        return None
    units = _grown(len(shallow.units), len(one_more.units), layers)
    count = _grown(len(shallow.parameters), len(one_more.parameters), layers)
    try:
        all_events = EventWriter(parameters=count, units=units).write(events, layers)
        written = write_parameters(parameters, layers, events=all_events, units=units)
    except (IndexError, KeyError):
        return None
    return msgspec.structs.replace(
        shallow,
        events=all_events,
        parameters=written,
        units=["model", *(f"unit {i}" for i in range(1, units))],
        operators=operators,
        answers=_grown(shallow.answers, one_more.answers, layers),
        seconds=shallow.seconds + one_more.seconds,
    )


def _grown(few: int, more: int, layers: int) -> int:
    return few + layers * (more - few)


def same_trace(one: Trace, other: Trace) -> bool:
    """Whether two traces are the same but for the numbers of storages and the names of parameters, phase by phase."""
    a, b = Counted(one), Counted(other)
    return (
        _alike(one, other)
        and len(one.units) == len(other.units)
        and one.answers == other.answers
        and a.tokens() == b.tokens()
        and a.parameters() == b.parameters()
        and _operator_table(one.operators) == _operator_table(other.operators)
    )


def _alike(one: Trace, other: Trace) -> bool:
    names = ("micro_steps", "steps", "logits_bytes", "optimizer", "state_tensors", "state_item_bytes", "optimizer_scratch")
    told = ("not_understood", "remarks", "portable", "torch_version")
    return all(getattr(one, n) == getattr(other, n) for n in names + told)


# -- work ------------------------------------------------------------------------------------------------------------------


def _operators(few: Sequence[OperatorCost], more: Sequence[OperatorCost], layers: int) -> list[OperatorCost] | None:
    """Counts, and the sizes of calls that take all layers at once, as they are with so many layers more."""
    a, b = _operator_table(few), _operator_table(more)
    out = [msgspec.structs.replace(o, count=_grown(a[k], b[k], layers)) for o in few if (k := _call(o)) in b]
    gone, new = _by_kind(few, without=b), _by_kind(more, without=a)
    if gone.keys() != new.keys():
        return None
    for kind, ones in gone.items():
        others = new[kind]
        if len(ones) != len(others):
            return None
        for one, other in zip(ones, others, strict=True):
            if one.count != other.count:
                return None
            grown = {n: _grown(getattr(one, n), getattr(other, n), layers) for n in ("flops", "bytes")}
            out.append(msgspec.structs.replace(one, **grown))
    return out


def _call(cost: OperatorCost) -> tuple[object, ...]:
    return cost.name, cost.kind, int(cost.phase), cost.dtype, cost.flops, cost.bytes


def _operator_table(costs: Sequence[OperatorCost]) -> Counter[tuple[object, ...]]:
    table: Counter[tuple[object, ...]] = Counter()
    for cost in costs:
        table[_call(cost)] += cost.count
    return table


def _by_kind(
    costs: Sequence[OperatorCost], *, without: Counter[tuple[object, ...]]
) -> dict[tuple[object, ...], list[OperatorCost]]:
    """Calls that the other trace has not, smallest first, by everything but size."""
    out: dict[tuple[object, ...], list[OperatorCost]] = defaultdict(list)
    for cost in sorted(costs, key=lambda o: (o.flops, o.bytes)):
        if _call(cost) not in without:
            out[_call(cost)[:4]].append(cost)
    return dict(out)
