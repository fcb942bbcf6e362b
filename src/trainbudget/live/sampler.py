"""The sampler thread: the only place where the driver is asked. A call that never returns costs this thread, nothing else."""

from __future__ import annotations

import copy
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence

from trainbudget.clock import Clock
from trainbudget.errors import GpuUnavailableError
from trainbudget.events import AnyEvent, BackendError, Event, Gpu
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
        self.thread.start()

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
            self._open()
            while not self._stop.is_set():
                self._round()
                if self._clock.wait(self._stop, self._period_s):
                    break
        except Exception as err:  # noqa: BLE001 - the thread's last line of defence
            self.errors["sampler"] = self.errors.get("sampler", 0) + 1
            self.error = self.error or BackendError(code="unknown", text=f"{type(err).__name__}: {err}")
            _log.warning("GPU sampling has ended (%s: %s); training is not affected", type(err).__name__, err)
        finally:
            self.ready.set()
            if self.backend is not None and not self.stuck:
                self.backend.close()

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
            self.busy_since_s = None
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
        began_s = self.busy_since_s = self._clock.now_s()
        for gpu in self._watched:
            reading = self.backend.read(gpu, now_s=self._now_s())
            reading.t_s = self._now_s()
            if self._stop.is_set():
                return  # replaced while the driver kept us waiting
            self.facts.append(reading)
            for query in reading.errors or ():
                self.errors[query] = self.errors.get(query, 0) + 1
        if isinstance(self.backend, AllocatorSource):
            self.facts.extend(self.backend.allocator(self._now_s()))
        if isinstance(self.backend, EventSource):
            self.facts.extend(e for e in self.backend.events(self._now_s()) if isinstance(e, Event))
        self.busy_since_s = None
        self.sample_s += self._clock.now_s() - began_s

    def _now_s(self) -> float:
        return self._clock.now_s() - self._zero_s
