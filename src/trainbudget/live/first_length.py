"""The length of the first batch, for somebody who waits for it on another thread."""

from __future__ import annotations

import threading

#: Data that takes longer than this to prepare is planned without a description of the run.
PATIENCE_S = 120.0


class FirstLength:
    """Told once on the training thread, waited for elsewhere."""

    def __init__(self) -> None:
        self.known = False
        self._tokens: float | None = None
        self._told = threading.Event()

    def tell(self, tokens: float | None) -> None:
        """Tokens of an example; None = there will be none to tell. The first word counts."""
        if not self.known:
            self.known = True
            self._tokens = tokens
            self._told.set()

    def wait(self) -> float | None:
        """What was told, or None."""
        self._told.wait(PATIENCE_S)
        return self._tokens
