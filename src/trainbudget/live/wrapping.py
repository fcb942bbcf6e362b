"""Standing around methods of a framework's object, where it has no hook; and hooks that can never raise."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])


def hook(method: _F) -> _F:
    """A framework's hook on an object with a `monitor`: whatever goes wrong in it is counted and training goes on."""

    @functools.wraps(method)
    def safe(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except Exception as err:  # noqa: BLE001 - training comes first
            with suppress(Exception):
                self.monitor._fault(method.__name__, err)
            return None

    safe.is_harmless = True  # type: ignore[attr-defined]
    return safe  # type: ignore[return-value]


class Around:
    """Stands in for `owner.name` on the instance and calls `around(method, *args, **kwargs)`.

    The owner is held weakly: an instance that holds its own bound method would free its GPU memory late. Pickled or
    deep-copied with its owner it stays around the copy's method.
    """

    def __init__(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        self._owner = weakref.ref(owner)
        self._name, self._around = name, around
        self._before = owner.__dict__.get(name)
        functools.update_wrapper(self, getattr(type(owner), name, None) or self._before, updated=())
        self.__dict__.pop("__wrapped__", None)
        with suppress(TypeError, ValueError):
            self.__signature__ = inspect.signature(getattr(owner, name))  # frameworks look at parameters

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._around(self._method(), *args, **kwargs)

    def _method(self) -> Callable[..., Any]:
        if self._before is not None:
            return self._before  # type: ignore[no-any-return]
        return getattr(type(self._owner()), self._name).__get__(self._owner())  # type: ignore[no-any-return]

    @property
    def owned(self) -> bool:
        """Whether the owner still lives."""
        return self._owner() is not None

    def take_off(self) -> None:
        """Leave the owner as it was found, unless somebody has stood around us since."""
        owner = self._owner()
        if owner is None or owner.__dict__.get(self._name) is not self:
            return
        if self._before is not None:
            setattr(owner, self._name, self._before)
        else:
            owner.__dict__.pop(self._name, None)

    def __getstate__(self) -> dict[str, Any]:
        return {"owner": self._owner(), "name": self._name, "around": self._around, "before": self._before}

    def __setstate__(self, state: dict[str, Any]) -> None:
        owner, self._name, self._around, self._before = state["owner"], state["name"], state["around"], state["before"]
        self._owner = weakref.ref(owner)


def put_around(owner: Any, name: str, around: Callable[..., Any]) -> Around | None:
    """Stand around `owner.name`; None where there is no such method, or where this has been done already."""
    if not callable(getattr(owner, name, None)) or isinstance(owner.__dict__.get(name), Around):
        return None
    wrapper = Around(owner, name, around)
    owner.__dict__[name] = wrapper
    return wrapper
