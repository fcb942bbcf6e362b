"""A thread that talks to the network, so that the thread which feeds the engine never waits for it."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

_log = logging.getLogger("trainbudget")

#: How long `close` waits for what is still to be sent: the process is about to end.
CLOSE_S = 2.0


class Background:
    """Runs jobs one after the other on a daemon thread.

    Args:
        most: jobs that may wait; with 1 a newer one replaces an older one, with more the oldest is dropped and counted.

    Attributes:
        errors, dropped: jobs that raised, jobs that were dropped although they were not superseded.
    """

    def __init__(self, name: str, *, most: int = 1) -> None:
        self.errors = 0
        self.dropped = 0
        self._name = name
        self._most = most
        self._jobs: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._busy = False
        self._thread: threading.Thread | None = None

    def submit(self, job: Callable[[], None]) -> None:
        """Leave a job; returns at once. After `close` it is dropped."""
        with self._changed:
            if self._closing:
                self.dropped += 1
                return
            if len(self._jobs) >= self._most:
                self._jobs.popleft()
                self.dropped += self._most > 1
            self._jobs.append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"trainbudget-{self._name}", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Wait for the jobs that are left, at most `timeout_s`."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._jobs and not self._closing:
                    self._changed.wait()
                if not self._jobs:
                    return
                job = self._jobs.popleft()
            try:
                job()
            except Exception as err:  # noqa: BLE001 - a receiver that is down must not end the thread
                self.errors += 1
                if self.errors == 1:
                    _log.warning("%s: cannot be reached (%s: %s); it is tried again", self._name, type(err).__name__, err)
