"""The sampler thread: the only place where the driver is asked. A call that never returns costs this thread, nothing else."""

from __future__ import annotations

import copy
import functools
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from trainbudget.clock import Clock
from trainbudget.errors import GpuUnavailableError
from trainbudget.events import Allocator, AnyEvent, BackendError, Event, Gpu, Reading
from trainbudget.gpu.mapping import Mapping, map_devices
from trainbudget.gpu.protocol import AllocatorSource, EventSource, GpuBackend, Simulated

_log = logging.getLogger("trainbudget")

#: A driver call that takes this long is stuck: real ones take milliseconds, a driver reload some seconds.
STUCK_S = 30.0
#: More readings than this in flight and the feeder is gone.
CAPACITY = 4096


class Sampler:
    """Opens a backend and reads its devices every `period_s` until `stop`.

    Attributes:
        ready: set once the backend has answered (or failed to).
        error: why there is no device data, where that is so.
        sample_s: seconds spent in driver calls.
    """

    def __init__(
        self,
        make_backend: Callable[[], GpuBackend | None],
        clock: Clock,
        zero_s: float,
        *,
        period_s: float,
        local_rank: int | None = None,
        local_world_size: int | None = None,
    ) -> None:
        self._make_backend, self._clock, self._zero_s, self._period_s = make_backend, clock, zero_s, period_s
        self._local_rank, self._local_world_size = local_rank, local_world_size
        self.facts: deque[AnyEvent] = deque(maxlen=CAPACITY)
        self.ready = threading.Event()
        self.error: BackendError | None = None
        self.backend: GpuBackend | None = None
        self.gpus: tuple[Gpu, ...] = ()
        self.mapping = Mapping()
        self.torch_uuids: Sequence[str] | None = None  # all devices torch sees, in its order; set by the feeder
        self.torch_used: tuple[int, ...] = ()  # ordinals on which this process holds memory; set by the feeder
        self.sample_s = 0.0
        self.errors: dict[str, int] = {}
        self.busy_since_s: float | None = None
        self._stop = threading.Event()
        self._mapped: tuple[Sequence[str] | None, tuple[int, ...]] = (None, ())
        self._watched: list[int] = []
        self.thread = threading.Thread(target=self._run, name="trainbudget-sampler", daemon=True)

    def start(self) -> None:
        """Start the thread; a system that gives none leaves the run without device data."""
        try:
            self.thread.start()
        except RuntimeError as err:
            self.errors["sampler"] = 1
            self.error = BackendError(code="unknown", text=str(err))
            self.ready.set()

    def stop(self) -> None:
        """Ask the thread to end; it is a daemon and is not waited for."""
        self._stop.set()

    @property
    def stuck(self) -> bool:
        """Whether a driver call has been out for too long."""
        since = self.busy_since_s
        return since is not None and self._clock.now_s() - since > STUCK_S

    def _run(self) -> None:
        try:
            self._guarded(self._open)
            while self.backend is not None and not self._stop.is_set():
                self._guarded(self._round)
                if self._clock.wait(self._stop, self._period_s):
                    break
        finally:
            self.ready.set()
            if self.backend is not None and not self.stuck:
                self._guarded(self.backend.close)

    def _guarded(self, call: Callable[[], None]) -> None:
        """A backend that breaks its word costs one round; the first time is said."""
        try:
            call()
        except Exception as err:  # noqa: BLE001 - whatever a driver's library raises
            count = self.errors["sampler"] = self.errors.get("sampler", 0) + 1
            if not self.gpus:
                self.error = self.error or BackendError(code="unknown", text=f"{type(err).__name__}: {err}")
            if count == 1:
                with suppress(Exception):  # a handler of the application's
                    _log.warning("a GPU reading failed (%s: %s); training is not affected", type(err).__name__, err)
        finally:
            self.busy_since_s = None

    def _open(self) -> None:
        self.busy_since_s = self._clock.now_s()
        try:
            self.backend = self._make_backend()
            if self.backend is None:
                self.error = BackendError(code="none", text="switched off")
                return
            self.gpus = self.backend.open()
            if not self.gpus:
                self.error = BackendError(code="no_gpu", text="the driver shows no GPU")
            self._map()
        except GpuUnavailableError as err:
            self.error = BackendError(code=err.code, text=str(err))
            self.backend = None
        finally:
            self.ready.set()

    def _map(self) -> None:
        """Decide whose the devices are, again when torch has told its UUIDs; announce what changed."""
        if self.backend is None or not self.gpus:
            return
        self._mapped = (self.torch_uuids, self.torch_used)
        simulated = self.backend if isinstance(self.backend, Simulated) else None
        self.mapping = map_devices(
            self.backend.identities,
            visible=None if simulated else os.environ.get("CUDA_VISIBLE_DEVICES"),
            order=None if simulated else os.environ.get("CUDA_DEVICE_ORDER"),
            torch_uuids=simulated.framework_uuids if simulated else self.torch_uuids,
            local_rank=self._local_rank,
            local_world_size=self._local_world_size,
            used=simulated.used_ordinals if simulated else self.torch_used,
        )
        owned = set(self.mapping.owned)
        # Devices of sibling ranks are theirs to charge; where nobody's is known, all that the job can see are the job's.
        visible = set(self.mapping.spare if owned else self.mapping.visible)
        self._watched = []
        for gpu in self.gpus:
            gpu.t_s = self._now_s()
            gpu.owned = gpu.gpu in owned
            gpu.visible = gpu.gpu in visible if not gpu.owned else None
            if gpu.owned or (gpu.visible and self._local_rank in (None, 0)):
                self._watched.append(gpu.gpu)
                self.facts.append(copy.copy(gpu))

    def _round(self) -> None:
        if self.backend is None:
            return
        if (self.torch_uuids, self.torch_used) != self._mapped:
            self._map()
        for gpu in tuple(self._watched):
            self._guarded(functools.partial(self._read, gpu))
        self._guarded(self._read_more)

    def _read(self, gpu: int) -> None:
        assert self.backend is not None
        began_s = self.busy_since_s = self._clock.now_s()
        reading = self.backend.read(gpu, now_s=self._now_s())
        if self._stop.is_set():
            return  # replaced while the driver kept us waiting
        if not isinstance(reading, Reading):
            raise TypeError(f"backend {self.backend.name} answered {type(reading).__name__} instead of a reading")
        reading.t_s = self._now_s()
        self.facts.append(reading)
        for query in reading.errors or ():
            self.errors[query] = self.errors.get(query, 0) + 1
        self.sample_s += self._clock.now_s() - began_s

    def _read_more(self) -> None:
        """What only some backends tell: the allocator, moments."""
        self.busy_since_s = self._clock.now_s()
        if isinstance(self.backend, AllocatorSource):
            self.facts.extend(a for a in self.backend.allocator(self._now_s()) if isinstance(a, Allocator))
        if isinstance(self.backend, EventSource):
            self.facts.extend(e for e in self.backend.events(self._now_s()) if isinstance(e, Event))

    def _now_s(self) -> float:
        return self._clock.now_s() - self._zero_s
