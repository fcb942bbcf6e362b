"""One device's memory over the run: what is held at rest, at the peak, by the cache, and outside the allocator.

Everything is derived from allocator lines (a few a minute), and from the readings between two of them. Memory is bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trainbudget.engine.tracks.memory_peaks import IGNORED_PHASES, PeakCounter
from trainbudget.engine.tracks.memory_records import EpochLevel, Failure, PhaseMemory
from trainbudget.engine.tracks.memory_tokens import TokenPeaks
from trainbudget.engine.tracks.series import Series
from trainbudget.events import Allocator, Reading

if TYPE_CHECKING:
    from trainbudget.engine.timeline import Timeline
    from trainbudget.engine.tracks.device import DeviceTrack
    from trainbudget.engine.tracks.run import Epoch, OpenPhase, Session

#: Steps of a session before its level at rest counts: optimizer states appear in the first, gradient buckets, workspaces and
#: autotuning buffers in the next few.
SETTLE_STEPS = 5
#: Of lines taken at any moment ("sample") only the lowest of this many is at rest: a step is mostly above its floor.
SAMPLES_PER_FLOOR = 8
#: A line this close (share of a step) behind a step's end belongs to it.
STEP_END_SHARE = 0.02
#: Between two lines reserved may have moved by this much for device use minus reserved to mean something.
STABLE_BYTES = 256.0 * 2**20
#: Phases with a memory course of their own.
PHASES = ("eval", "save")


class MemoryTrack:
    """Fed by `Timeline`; read by the memory detectors. All series restart with each session."""

    def __init__(self) -> None:
        self.lines = 0
        self.session: Session | None = None
        self.begin_allocated: float | None = None  # before the session's first step
        self.early: list[float] = []  # allocated, before the first step has completed
        self.early_peak: float | None = None
        self.first_rest: float | None = None  # after the first step: optimizer states included
        self.rest = Series(256, 32)
        self.reserved = Series(256, 32)
        self.used = Series(256, 32)  # device use, only while no allocator line has ever come
        self.epochs: deque[EpochLevel] = deque(maxlen=256)
        self.tokens = TokenPeaks()
        self.transients: deque[float] = deque(maxlen=32)  # window peak minus level at rest
        self.session_peak: float | None = None
        self.max_peak: float | None = None  # process-wide, phases included
        self.reserved_begin: float | None = None  # reserved when the session had settled
        self.outside: deque[float] = deque(maxlen=32)  # device use minus reserved: lower bounds, one an interval
        self.outside_low: float | None = None
        self.retries_begin: float | None = None
        self.retries: deque[tuple[float, int | None, float]] = deque(maxlen=64)  # (t_s, step, cumulative)
        self.phase: PhaseMemory | None = None
        self.failure: Failure | None = None
        self.previous_rest: float | None = None  # median level at rest of the session before
        self.early_used: float | None = None  # device use before anything of ours was there
        self.early_busy: float | None = None  # highest utilization then
        self.cache: dict[str, tuple[int, Any]] = {}  # results of detectors' arithmetic, by the number of points they used
        self._last: Allocator | None = None
        self._last_s = -1.0
        self._ooms: float | None = None
        self._hint_at = -1  # points at rest by which `_hint` was reckoned
        self._hint = 0.0
        self._peaks = PeakCounter()
        self._floor: list[float] = []
        self._epoch: Epoch | None = None

    # --- facts

    def on_reading(self, event: Reading, timeline: Timeline) -> None:
        if self.lines or event.memory_used_bytes is None:
            return
        if timeline.run.started:
            self.used.add(event.t_s, timeline.run.last_step, event.memory_used_bytes)
        elif not timeline.run.training:
            # The lowest before training began: what was there before our own context and weights came.
            low = self.early_used
            self.early_used = event.memory_used_bytes if low is None else min(low, event.memory_used_bytes)
            if event.utilization_ratio is not None:
                self.early_busy = max(self.early_busy or 0.0, event.utilization_ratio)

    def on_allocator(self, event: Allocator, device: DeviceTrack, timeline: Timeline) -> None:
        run = timeline.run
        self.lines += 1
        if run.session is not self.session:
            self._begin(run.session)
        failed = event.ooms is not None and event.ooms > (self._ooms if self._ooms is not None else event.ooms)
        if event.ooms is not None:
            self._ooms = event.ooms
        self._take_outside(event, device)
        # Always: a counter's rise in a trial or a failure is no rise of the next line.
        peak = self._peaks.window(event, self._last_s, run)
        if failed:
            self._fail(event)
        else:
            self._take(event, peak, timeline)
        self._last, self._last_s = event, event.t_s

    # --- readings off

    @property
    def level_bytes(self) -> float | None:
        """Median of the newest levels at rest."""
        return _median([p.value for p in list(self.rest.tail)[-5:]])

    @property
    def early_level(self) -> float | None:
        """Median of what was allocated during the first step: weights and gradients, no optimizer states yet."""
        return _median(self.early)

    @property
    def transient_bytes(self) -> float:
        """How far the newest steps rise above their level at rest; 0 where no peak is known."""
        return max(self.transients, default=0.0)

    @property
    def excess_bytes(self) -> float | None:
        """Cache that no peak so far has needed, or None."""
        last = self._last
        if last is None or last.reserved_bytes is None or self.max_peak is None:
            return None
        return max(0.0, last.reserved_bytes - self.max_peak)

    @property
    def last(self) -> Allocator | None:
        return self._last

    def growth_hint(self) -> float:
        """Newest level minus the first ones, in bytes: the cheap question before any trend is computed."""
        if self._hint_at != self.rest.total:
            self._hint_at, self._hint = self.rest.total, self._grown()
        return self._hint

    def _grown(self) -> float:
        points = self.rest.points
        if len(points) < 8:
            return 0.0
        first = _median([p.value for p in points[:5]]) or 0.0
        return (self.level_bytes or 0.0) - first

    def cached(self, name: str, points: int, compute: Callable[[], Any]) -> Any:
        """`compute()`, at most once per 12 % more points: a trend changes no faster."""
        known = self.cache.get(name)
        if known is not None and known[0] <= points < known[0] * 1.12 + 1:
            return known[1]
        value = compute()
        self.cache[name] = (points, value)
        return value

    # --- how

    def _begin(self, session: Session | None) -> None:
        if self.session is not None:
            self.previous_rest = self.level_bytes if self.rest.total >= 3 else self.previous_rest
        self.session = session
        self.begin_allocated = self._last.allocated_bytes if self._last is not None else None
        self.early.clear()
        self.early_peak = self.first_rest = None
        self.rest.clear()
        self._hint_at = -1
        self.reserved.clear()
        self.epochs.clear()
        self.tokens = TokenPeaks()
        self.transients.clear()
        self.session_peak = self.reserved_begin = None
        self.retries_begin = None
        self.retries.clear()
        self.phase = None
        self.cache.clear()
        self._floor.clear()
        self._epoch = None

    def _take(self, event: Allocator, peak: float | None, timeline: Timeline) -> None:
        run = timeline.run
        if run.open and any(p.phase in IGNORED_PHASES for p in run.open):
            return
        highest = peak if peak is not None else event.allocated_bytes
        self._take_highest(event, highest, timeline)
        if not run.training or event.allocated_bytes is None:
            return
        opened = next((p for p in run.open if p.phase in PHASES), None) if run.open else None
        if opened is not None:
            self._take_phase(event, opened, peak)
            return
        self.phase = None
        if run.session is None or run.session.steps == 0:
            self.early.append(event.allocated_bytes)
            del self.early[:-64]
            if highest is not None:
                self.early_peak = max(self.early_peak or 0.0, highest)
            return
        if self.first_rest is None:
            self.first_rest = event.allocated_bytes
        if peak is not None:
            self.tokens.records_only = event.peak_since == "process"
            self.tokens.take(self._last_s, peak, timeline)
        if run.session.steps >= SETTLE_STEPS:
            self._take_settled(event, peak, timeline)

    def _take_highest(self, event: Allocator, highest: float | None, timeline: Timeline) -> None:
        run = timeline.run
        if highest is not None:
            if self.max_peak is None or highest > self.max_peak:
                self.max_peak = highest
            if run.training and (self.session_peak is None or highest > self.session_peak):
                self.session_peak = highest
        if event.alloc_retries is not None:
            if self.retries_begin is None:
                self.retries_begin = event.alloc_retries
            self.retries.append((event.t_s, run.last_step, event.alloc_retries))

    def _take_settled(self, event: Allocator, peak: float | None, timeline: Timeline) -> None:
        step = event.step if event.step is not None else timeline.run.last_step
        if event.reserved_bytes is not None:
            self.reserved.add(event.t_s, step, event.reserved_bytes)
            if self.reserved_begin is None:
                self.reserved_begin = event.reserved_bytes
        value = self._at_rest(event, timeline)
        if value is None:
            return
        if peak is not None:
            self.transients.append(peak - value if peak > value else 0.0)
        self.rest.add(event.t_s, step, value)
        self._take_epoch(step or 0, value, timeline)

    def _at_rest(self, event: Allocator, timeline: Timeline) -> float | None:
        assert event.allocated_bytes is not None
        if event.at == "step_end" or (event.at is None and self._after_step(event, timeline)):
            return event.allocated_bytes
        self._floor.append(event.allocated_bytes)
        if len(self._floor) < SAMPLES_PER_FLOOR:
            return None
        low = min(self._floor)
        self._floor.clear()
        return low

    @staticmethod
    def _after_step(event: Allocator, timeline: Timeline) -> bool:
        if event.step is not None:
            return True
        last = timeline.last_step
        if last is None:
            return False
        return event.t_s - last.event.t_s <= max(0.01, STEP_END_SHARE * last.duration_s)

    def _take_epoch(self, step: int, value: float, timeline: Timeline) -> None:
        epoch = timeline.run.epoch
        if epoch is None:
            return
        if epoch is not self._epoch or not self.epochs:
            self._epoch = epoch
            self.epochs.append(EpochLevel(step, value, value, value, value))
            return
        level = self.epochs[-1]
        if value < level.low:
            level.low = value
        elif value > level.high:
            level.high = value
        level.last = value
        level.points += 1

    def _take_phase(self, event: Allocator, opened: OpenPhase, peak: float | None) -> None:
        allocated = event.allocated_bytes
        assert allocated is not None
        if self.phase is None or self.phase.start_s != opened.start_s:
            self.cache.pop("eval", None)
            base = self.level_bytes
            self.phase = PhaseMemory(opened.phase, opened.start_s, allocated if base is None else base)
        lines = self.phase.lines
        lines.append((event.t_s, allocated, peak))
        if len(lines) > 256:
            del lines[1::2]

    def _take_outside(self, event: Allocator, device: DeviceTrack) -> None:
        """Device use minus reserved, for the readings since the previous line.

        Both move between two lines, so the larger reserved of the two lines is taken: a lower bound that needs no clock.
        """
        last = self._last
        if event.reserved_bytes is None or last is None or last.reserved_bytes is None:
            return
        grown = event.reserved_bytes - last.reserved_bytes
        settled = self.session is not None and self.session.steps >= SETTLE_STEPS and event.alloc_retries == last.alloc_retries
        if grown < -STABLE_BYTES or (grown > STABLE_BYTES and not settled):
            return  # a model is loading, a cache is flushed: the difference says nothing
        reserved = max(event.reserved_bytes, last.reserved_bytes)
        if event.peak_reserved_bytes is not None and event.peak_since != "process":
            reserved = max(reserved, event.peak_reserved_bytes)
        low: float | None = None
        for sample in reversed(device.window):
            if sample.t_s <= self._last_s:
                break
            if sample.memory_used_bytes is not None:
                value = sample.memory_used_bytes - reserved
                low = value if low is None else min(low, value)
                if grown > STABLE_BYTES:
                    break  # a cache that grows all the time: its newest reading is the nearest to the line
        if low is None:
            return
        low = max(0.0, low)
        self.outside.append(low)
        if grown > STABLE_BYTES:
            return  # far below what it is: no measure of a context
        self.outside_low = low if self.outside_low is None else min(self.outside_low, low)

    def _fail(self, event: Allocator) -> None:
        last, excess = self._last, self.excess_bytes
        self.failure = Failure(
            event.t_s,
            None if last is None else last.allocated_bytes,
            event.peak_allocated_bytes if event.peak_since != "process" else None,
            None if last is None else last.reserved_bytes,
            excess,
        )
        if event.reserved_bytes is not None and excess is not None:
            # New segments are taken only when the cache is used up: what was reserved now was in use, but for the excess.
            self.max_peak = max(self.max_peak or 0.0, event.reserved_bytes - excess)


def _median(values: list[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None
