"""A stand-in for a data loader that times `next()` and shows each batch; everything else is the loader itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any


class TimedLoader:
    """Forwards every attribute and `__class__` of `loader`, so that `isinstance` and settings see the real one.

    Args:
        loader: what is iterated.
        waited: called with the seconds each `next()` took.
        describe: called with each batch as it comes, before anybody else has it; must not raise.
        seen: called with what `describe` said, when the training loop gets the batch.
        ahead: batches that the caller fetches before it passes one on.
        now_s: the clock.
    """

    def __init__(
        self,
        loader: Any,
        *,
        waited: Callable[[float], None],
        describe: Callable[[Any], Any],
        seen: Callable[[Any], None],
        now_s: Callable[[], float],
        ahead: int = 0,
    ) -> None:
        self.__dict__["_timed"] = (loader, waited, describe, seen, now_s, ahead)

    def __iter__(self) -> Iterator[Any]:
        loader, waited, describe, seen, now_s, ahead = self.__dict__["_timed"]
        held: deque[Any] = deque()
        began = now_s()
        iterator = iter(loader)
        waited(now_s() - began)  # starting workers is waiting for data too
        while True:
            began = now_s()
            try:
                batch = next(iterator)
            except StopIteration:
                while held:
                    seen(held.popleft())
                return
            waited(now_s() - began)
            held.append(describe(batch))
            if len(held) > ahead:
                seen(held.popleft())
            yield batch

    def __len__(self) -> int:
        return len(self.__dict__["_timed"][0])

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self.__dict__["_timed"][0])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_timed"][0], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_timed"][0], name, value)

    def __reduce__(self) -> Any:
        """A pickled proxy is the loader itself."""
        return (_same, (self.__dict__["_timed"][0],))


def _same(loader: Any) -> Any:
    return loader
