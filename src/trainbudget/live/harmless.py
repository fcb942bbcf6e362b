"""Hooks that can never reach training: whatever goes wrong in one is counted, and what it costs is measured."""

from __future__ import annotations

import functools
from collections.abc import Callable
from time import perf_counter  # called twice a hook: by its own name it is found sooner
from typing import Any, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])


def harmless(method: _F) -> _F:
    """A hook that costs the caller its time and nothing else: faults are counted, the first of each kind is logged.

    The object has `_inert` (true: nothing happens) and `_counters`.
    """

    @functools.wraps(method)
    def safe(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self._inert:
            return None
        began = perf_counter()
        try:
            return method(self, *args, **kwargs)
        except Exception as err:  # noqa: BLE001 - training comes first
            self._counters.fault(method.__name__, err)
            return None
        finally:
            self._counters.hook_s += perf_counter() - began

    return safe  # type: ignore[return-value]
