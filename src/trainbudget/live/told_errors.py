"""An error that ends training, as facts. It passes several of our places on its way out and is told once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from trainbudget.engine.oom_message import is_device_oom, parse_oom
from trainbudget.events import Event

#: What an `oom` moment carries of the error's own words.
_OOM_NUMBERS = ("gpu", "requested_bytes", "allocated_bytes", "reserved_bytes", "free_bytes", "total_bytes")

#: What a handler of SIGTERM and the like exits with, by the shells' convention: 128 + the signal's number.
_SIGNAL_EXITS = range(129, 129 + 64)


def moment(t_s: float, name: str, **detail: object) -> Event:
    """An `event` with what is known of its detail."""
    known = {key: value for key, value in detail.items() if value is not None}
    return Event(t_s=t_s, event=name, detail=known or None)


def first_time(error: BaseException, what: str) -> bool:
    """Whether this error object is told as `what` for the first time."""
    mark = f"_trainbudget_{what}"
    if getattr(error, mark, False):
        return False
    with suppress(AttributeError):  # an exception with slots: at worst it is told twice
        setattr(error, mark, True)
    return True


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device's memory did not suffice."""
    return is_device_oom(type(error).__name__, str(error))


def is_interrupt(error: BaseException) -> bool:
    """Whether somebody ended training on purpose: Ctrl-C, or an exit that is no error or told by a signal."""
    if isinstance(error, SystemExit):
        return not error.code or (isinstance(error.code, int) and error.code in _SIGNAL_EXITS)
    return isinstance(error, KeyboardInterrupt)


def exception_moment(t_s: float, error: BaseException) -> Event:
    return moment(t_s, "exception", type=type(error).__name__, message=str(error)[:500])


def oom_moment(t_s: float, error: BaseException, visible: Sequence[int]) -> Event:
    """`oom` with the error's own numbers. `visible`: our devices as the framework counts them."""
    message = str(error)
    said = parse_oom(message)
    numbers = {name: getattr(said, name, None) for name in _OOM_NUMBERS}
    ordinal = numbers["gpu"]
    if ordinal is not None:
        numbers["gpu"] = visible[ordinal] if ordinal < len(visible) else None
    return moment(t_s, "oom", **numbers, message=message[:4000])
