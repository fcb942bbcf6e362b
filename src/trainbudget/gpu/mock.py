"""A GPU that is not there: telemetry and memory of an A100 that follow the training's own events, with a story in it.

A run on a CPU drives it: its steps, data waits and phases make the card busy or idle. Everything is deterministic in the
seed, the events and the times of the readings.
"""

from __future__ import annotations

import os
import threading
from collections import deque

from trainbudget.errors import ConfigError
from trainbudget.events import Allocator, AnyEvent, Gpu, Process, Reading
from trainbudget.gpu import mock_card as card
from trainbudget.gpu.mock_memory import Allocation, after_step, neighbour_bytes
from trainbudget.gpu.mock_training import Activity, StepNote, TrainingView
from trainbudget.gpu.protocol import GPU_IS_LOST, NOT_SUPPORTED, BackendName, GpuIdentity

#: What each scenario shows, for help texts.
SCENARIOS = {
    "healthy": "a card that works well",
    "idle": "a card that the training never touches, because it runs on the CPU by mistake",
    "input_bound": "a card that waits for data exactly as long as the training says it does",
    "leak": "memory that grows at every step and would meet the limit before the end",
    "long_batch": "peaks that follow the longest sequence of each batch",
    "fragmentation": "a cache that holds ever more than is used, until it must be emptied",
    "neighbour": "another process that takes memory on the same card",
    "throttle": "a card whose cooling fails and whose clock falls",
    "lost": "a card that falls off the bus in mid-run",
    "hang": "a card that spins at full utilization and low power once the steps stop",
    "unsupported": "a card that tells nothing but its memory",
}

#: Where in the story the card is lost, or its cooling fails.
_LOST_AT = 0.5
_HOT_AT = 0.15
#: Process lists are long and change seldom.
_PROCESSES_PERIOD_S = 10.0
_NEIGHBOUR_PID = 3_141_592
_REFUSED_WHEN_UNSUPPORTED = ("utilization", "memory_v2", "power", "clock", "energy", "processes", "sm_active", "pcie", "ecc")
_ASKED = ("memory_v2", "utilization", "power", "clock", "temperature", "energy", "ecc", "processes", "pcie")
#: Facts of a training whose backend stopped asking for them must not pile up.
_MAX_PENDING = 4096


class MockBackend:
    """Pretended cards. Implements `GpuBackend`, `AllocatorSource`, `Observer` and `Simulated`.

    The framework's device `k` is not the backend's index `k` (with more than one card), so code that takes a rank for an
    index fails at once; `framework_uuids` is the right way round.
    """

    name: BackendName = "mock"

    def __init__(
        self,
        scenario: str = "healthy",
        *,
        gpus: int = 1,
        local_rank: int = 0,
        local_world_size: int = 1,
        story_steps: int | None = None,
        speed: float = 1.0,
        seed: int = 0,
        own_pid: int | None = None,
        memory_gib: float | None = None,
    ) -> None:
        """
        Args:
            scenario: one of `SCENARIOS`.
            gpus: cards of the pretended machine.
            local_rank: the framework's device that this process trains on.
            local_world_size: how many of the devices train; the others are idle.
            story_steps: steps until the story has been told; None takes the run's own length where a budget tells it, else 300.
            speed: how much faster than a real one the card warms up.
            seed: of the noise.
            own_pid: the process that is seen on the card.
            memory_gib: what a process may hold on the card; None = as on the real one. The memory stories shrink with it.

        Raises:
            ConfigError: unknown scenario, a rank without a card, or a card without room.
        """
        limit = card.MEMORY_LIMIT_BYTES if memory_gib is None else memory_gib * card.GIB
        if not card.CONTEXT_BYTES < limit <= card.MEMORY_LIMIT_BYTES:
            raise ConfigError(f"the mock's card has more than 0.45 and at most 79 GiB of memory, not {memory_gib}")
        self._limit_bytes = limit
        self._scale = (limit - card.CONTEXT_BYTES) / (card.MEMORY_LIMIT_BYTES - card.CONTEXT_BYTES)
        if scenario not in SCENARIOS:
            raise ConfigError(f"unknown mock scenario {scenario!r}: use one of {', '.join(SCENARIOS)}")
        if not 0 <= local_rank < gpus:
            raise ConfigError(f"the mock has {gpus} GPUs, local rank {local_rank} has none")
        self.driver_version: str | None = None
        self.scenario = scenario
        self._gpus = gpus
        self._rank = local_rank
        self._training_ranks = max(local_world_size, local_rank + 1)
        self._seed = seed
        self._own_pid = os.getpid() if own_pid is None else own_pid
        self._bodies = [card.CardBody(seed=seed + rank, speed=speed) for rank in range(gpus)]
        self._lock = threading.Lock()
        self._view = TrainingView(story_steps=story_steps)
        self._allocation = Allocation()
        self._pending: deque[Allocator] = deque(maxlen=_MAX_PENDING)
        self._listed_s: dict[int, float] = {}
        self._refusals_told: set[int] = set()
        self._neighbour_listed = False

    @property
    def framework_uuids(self) -> tuple[str, ...]:
        """UUIDs in the order in which the framework numbers its devices."""
        return tuple(f"GPU-mock-{self._seed:04x}-{rank:04x}" for rank in range(self._gpus))

    @property
    def used_ordinals(self) -> tuple[int, ...]:
        """The framework's number of the card that this process trains on."""
        return (self._rank,)

    @property
    def identities(self) -> tuple[GpuIdentity, ...]:
        uuids = self.framework_uuids
        return tuple(
            GpuIdentity(index=index, ordinal=index, uuid=uuids[self._rank_of(index)], name=card.NAME)
            for index in range(self._gpus)
        )

    def open(self) -> tuple[Gpu, ...]:
        return tuple(
            Gpu(
                gpu=identity.index,
                uuid=identity.uuid,
                name=card.NAME,
                memory_total_bytes=self._limit_bytes + card.MEMORY_RESERVED_BYTES,
                # Without its own query the driver's part is in `used`, and the limit is the whole card.
                memory_limit_bytes=self._limit_bytes + (card.MEMORY_RESERVED_BYTES if self.scenario == "unsupported" else 0.0),
                memory_limit_source="mock",
                power_limit_w=card.POWER_LIMIT_W,
                power_default_limit_w=card.POWER_LIMIT_W,
                mig=False,
                pcie_gen_max=4,
                pcie_width_max=16,
                compute_capability=card.COMPUTE_CAPABILITY,
                unified_memory=False,
            )
            for identity in self.identities
        )

    def close(self) -> None:
        """Nothing is held."""

    def observe(self, event: AnyEvent) -> None:
        with self._lock:
            note = self._view.observe(event)
            if note is not None and self.scenario != "idle":
                self._allocation = after_step(self.scenario, self._allocation, note, self._view.progress, self._seed)
                self._pending.append(self._allocator_fact(note))

    def allocator(self, now_s: float) -> tuple[Allocator, ...]:
        with self._lock:
            facts = tuple(self._pending)
            self._pending.clear()
        return facts

    def read(self, gpu: int | str, *, now_s: float) -> Reading:
        index = self._index_of(gpu)
        with self._lock:
            activity = self._view.activity(now_s)
            progress = self._view.progress
            own = self._rank_of(index) == self._rank
            trains = self._rank_of(index) < self._training_ranks and not (own and self.scenario == "idle")
            if self.scenario == "lost" and own and progress >= _LOST_AT:
                return Reading(t_s=now_s, gpu=index, errors=dict.fromkeys(("handle", *_ASKED), GPU_IS_LOST))
            telemetry = self._bodies[self._rank_of(index)].live(self._load(activity, progress, trains, own), now_s)
            reading = self._reading(index, now_s, telemetry)
            self._fill_memory(reading, trains, own, neighbour_bytes(self.scenario, progress) if own else None)
            if self.scenario == "unsupported":
                return self._refuse(reading)
            return reading

    def _index_of(self, gpu: int | str) -> int:
        for identity in self.identities:
            if gpu in (identity.index, identity.uuid):
                return identity.index
        raise LookupError(f"no device {gpu!r}")

    def _rank_of(self, index: int) -> int:
        # Shifted by one: with more than one card no index is its rank.
        return (index + 1) % self._gpus

    def _load(self, activity: Activity, progress: float, trains: bool, own: bool) -> card.Load:
        if not trains:
            return card.Load()
        if self.scenario == "hang" and activity.standing:
            return card.Load(utilization_ratio=1.0, spinning=True)
        hot = self.scenario == "throttle" and own and progress >= _HOT_AT
        return card.Load(utilization_ratio=activity.utilization_ratio, hot=hot)

    def _reading(self, index: int, now_s: float, telemetry: card.Telemetry) -> Reading:
        return Reading(
            t_s=now_s,
            gpu=index,
            utilization_ratio=telemetry.utilization_ratio,
            memory_utilization_ratio=telemetry.memory_utilization_ratio,
            power_w=telemetry.power_w,
            temperature_c=telemetry.temperature_c,
            sm_clock_hz=telemetry.sm_clock_hz,
            energy_j=telemetry.energy_j,
            throttle=list(telemetry.throttle),
            pcie_gen=4,
            pcie_width=16,
            ecc_corrected=0.0,
            ecc_uncorrected=0.0,
        )

    def _fill_memory(self, reading: Reading, trains: bool, own: bool, foreign_bytes: float | None) -> None:
        # A process that has trained keeps its context and its cache.
        holds = trains and (self._view.training or self._view.steps_seen > 0)
        held = self._allocation.reserved * self._scale + card.CONTEXT_BYTES if holds else None
        foreign_bytes = None if foreign_bytes is None else foreign_bytes * self._scale
        used = min(card.MEMORY_UNUSED_BYTES + (held or 0.0) + (foreign_bytes or 0.0), self._limit_bytes)
        reading.memory_used_bytes = round(used)
        reading.memory_free_bytes = round(self._limit_bytes - used)
        reading.memory_reserved_bytes = card.MEMORY_RESERVED_BYTES
        new_neighbour = foreign_bytes is not None and not self._neighbour_listed
        listed_s = self._listed_s.get(reading.gpu)
        if listed_s is not None and reading.t_s - listed_s < _PROCESSES_PERIOD_S and not new_neighbour:
            return
        self._listed_s[reading.gpu] = reading.t_s
        self._neighbour_listed = self._neighbour_listed or new_neighbour
        reading.processes = []
        if held is not None:
            pid = self._own_pid if own else _NEIGHBOUR_PID + 1 + reading.gpu
            reading.processes.append(Process(pid=pid, memory_bytes=round(held), own=own, alive=True, started_before_run=False))
        if foreign_bytes is not None:
            neighbour = Process(
                pid=_NEIGHBOUR_PID, memory_bytes=round(foreign_bytes), own=False, alive=True, started_before_run=False
            )
            reading.processes.append(neighbour)

    def _refuse(self, reading: Reading) -> Reading:
        used, free = reading.memory_used_bytes or 0.0, reading.memory_free_bytes
        first = reading.gpu not in self._refusals_told
        self._refusals_told.add(reading.gpu)
        return Reading(
            t_s=reading.t_s,
            gpu=reading.gpu,
            memory_used_bytes=used + card.MEMORY_RESERVED_BYTES,  # the old query counts the driver's part in
            memory_free_bytes=free,
            temperature_c=reading.temperature_c,
            errors=dict.fromkeys(_REFUSED_WHEN_UNSUPPORTED, NOT_SUPPORTED) if first else None,
        )

    def _allocator_fact(self, note: StepNote) -> Allocator:
        now, scale = self._allocation, self._scale
        return Allocator(
            t_s=note.t_s,
            gpu=self._index_of(self.framework_uuids[self._rank]),
            at="step_end",
            step=note.step,
            allocated_bytes=round(now.allocated * scale),
            reserved_bytes=round(now.reserved * scale),
            active_bytes=round(now.allocated * scale),
            inactive_split_bytes=round(now.inactive_split * scale),
            peak_allocated_bytes=round(now.peak_allocated * scale),
            peak_reserved_bytes=round(now.peak_reserved * scale),
            alloc_retries=now.retries,
            ooms=0,
        )
