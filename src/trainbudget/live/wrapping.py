"""Standing around methods of a framework's object, where it has no hook; and hooks that can never raise."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
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
    """Methods of one object that are stood around; `take_off` ends it."""

    def __init__(self, owner: Any, plain: type) -> None:
        self._owner, self._plain, self._mine = weakref.ref(owner), plain, type(owner)

    @property
    def owned(self) -> bool:
        """Whether the owner still lives."""
        return self._owner() is not None

    def take_off(self) -> None:
        """Leave the owner as it was found, unless somebody has stood around us since."""
        owner = self._owner()
        if owner is not None and type(owner) is self._mine:
            owner.__class__ = self._plain


def put_around(owner: Any, around: Mapping[str, Callable[..., Any]], *, key: object) -> Around | None:
    """From now on `owner.NAME(...)` calls `around[NAME](method, ...)`, where there is such a method.

    The owner gets a class of its own, derived from its own and of the same name. A wrapper in its `__dict__` would have to
    hold it, and an object that holds itself gives its GPU memory back late.

    Args:
        key: for whom; the same one does not stand around twice (None is the answer then).
    """
    plain = type(owner)
    if any(vars(base).get("_stood_around_for") is key for base in plain.__mro__):
        return None
    methods = {name: _method(getattr(plain, name), act) for name, act in around.items() if callable(getattr(plain, name, None))}
    if not methods:
        return None
    namespace = {"__module__": plain.__module__, "__qualname__": plain.__qualname__, "__doc__": plain.__doc__}
    marks = {"_stood_around_for": key, "__reduce_ex__": _reduce_as_found}
    metaclass: Any = type(plain)
    owner.__class__ = metaclass(plain.__name__, (plain,), {**namespace, **marks, **methods})
    return Around(owner, plain)


def _method(function: Callable[..., Any], act: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return act(functools.partial(function, self), *args, **kwargs)

    return method


def _reduce_as_found(self: Any, protocol: Any) -> Any:
    """Pickled and copied as an object of the class that everybody knows."""
    found: Any = next(base for base in type(self).__mro__ if "_stood_around_for" not in vars(base))
    twin = found.__new__(found)
    twin.__dict__.update(self.__dict__)
    return found.__reduce_ex__(twin, protocol)
