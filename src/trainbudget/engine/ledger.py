"""Where every GPU-second went: each in exactly one bucket, booked once, when its bucket is final.

At an instant, per GPU: stall > innermost open phase > inside a step > between steps. What is booked is never taken back:
a fact that comes later than its seconds' booking (a step that ends after a stall was booked) keeps only the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from trainbudget.engine.step_parts import Parts, StepParts
from trainbudget.engine.timeline import HANG_FLOOR_S, Timeline
from trainbudget.engine.tracks.device import DeviceTrack
from trainbudget.engine.tracks.run import STARTUP_PHASES
from trainbudget.engine.tracks.steps import WARMUP_STEPS, StepRecord, steady_from
from trainbudget.events import AnyEvent, End, Event, Header, Phase, Price, Step

USEFUL = ("compute",)
OVERHEAD = ("startup", "warmup", "communication", "eval", "save", "log")
WASTE = ("data_wait", "host_gap", "padding", "optimizer_offload", "idle", "stall", "lost", "other")
BUCKETS = ("compute", "eval", "save", "startup", "warmup", "communication", "log", *WASTE)

_PHASE_BUCKET = {"eval": "eval", "save": "save", "log": "log", "compile": "warmup", **dict.fromkeys(STARTUP_PHASES, "startup")}
#: Seconds that wait for a later fact to tell their bucket (contract: at most this, or the open phase).
PENDING_S = 120.0
#: Nothing is final without a step before this: neither a stall nor a time out.
SETTLE_S = min(PENDING_S, HANG_FLOOR_S)
#: Parts that are less than any clock can tell apart are nothing to share by.
NOTHING_S = 1e-9
#: A gap between two steps below this is what is left of rounding.
NO_GAP_S = 1e-6


@dataclass(frozen=True, slots=True)
class Entry:
    """One bucket's content; cost is None without a price."""

    gpu_seconds: float
    cost: float | None


class Ledger:
    """Call `feed` after the timeline took the same fact. `seconds` and `cost` only ever grow."""

    def __init__(self, timeline: Timeline) -> None:
        self._time = timeline
        self.seconds: dict[str, float] = {}
        self.unpriced: dict[str, float] = {}
        self.cost: dict[str, float] = {}
        self.booked_s = 0.0  # wall seconds; everything before is booked
        self._begun = False
        self._price: Price | None = None
        self._counts: tuple[int, int] | None = None  # used and unused charged GPUs, while one fact is booked
        self._counted: list[DeviceTrack] | None = None  # the charged devices of `_counts` where all have worked: it stays true
        self._rate = 0.0  # money a GPU-second at the price of now
        self._parts = StepParts(timeline)
        self._warming: list[tuple[Step, StepRecord]] = []
        self._phases: list[tuple[float, float, str]] = []  # closed, not yet passed by booked_s: start, end, phase (wall)
        self._startup = True  # before the first step of a session
        self._training_ever = False
        self._stalling = False  # a standstill is being booked, and nothing has moved since
        self._handlers: dict[type, Callable[[Any], None]] = {
            Header: self._on_price,
            Price: self._on_price,
            Step: self._on_step,
            Phase: self._on_phase,
            Event: self._on_event,
            End: self._on_end,
        }

    # --- facts

    def feed(self, event: AnyEvent) -> None:
        time = self._time
        if not self._begun:
            self._begun, self.booked_s = True, time.started_s
        if self._counted is not time.charged:
            self._counts = None
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event)
        elif self._stalling or time.now_s - time.gaps_s - self.booked_s >= SETTLE_S:
            self._settle()

    @property
    def pending_s(self) -> float:
        """Wall seconds that are not booked yet."""
        return max(0.0, self._time.wall_s() - (self.booked_s if self._begun else self._time.started_s))

    @property
    def wait_assumed(self) -> bool:
        """Whether a data wait was charged whole, the GPU's part in it being unknown."""
        return self._parts.wait_assumed

    @property
    def charged_count(self) -> int:
        """Charged devices; without a GPU the pseudo-device `cpu` counts as one."""
        return len(self._time.charged) or 1

    @property
    def total_s(self) -> float:
        """Booked GPU-seconds."""
        return sum(self.seconds.values())

    def entries(self) -> dict[str, Entry]:
        priced = self._time.price is not None
        return {
            bucket: Entry(self.seconds[bucket], self.cost.get(bucket, 0.0) if priced else None)
            for bucket in BUCKETS
            if bucket in self.seconds
        }

    def _on_price(self, event: AnyEvent) -> None:
        """The first price known holds for what was booked before it; a later one only for what comes after."""
        if self._time.price is self._price:
            return
        self._price = self._time.price
        self._rate = (self._price.per_gpu_hour or 0.0) / 3600.0 if self._price is not None else 0.0
        for bucket, seconds in self.unpriced.items():
            self.cost[bucket] = self.cost.get(bucket, 0.0) + seconds * self._rate
        self.unpriced.clear()

    # --- steps

    def _on_step(self, event: Step) -> None:
        record = self._time.last_step
        if record is None:
            return
        self._stalling = False
        self._training_ever = True
        if self._time.steps.warming or self._warming:
            self._warming.append((event, record))
            waited = record.end_s - (self._warming[0][1].end_s)
            count = sum(r.count for _, r in self._warming)
            if self._time.steps.steady_since_step is not None or count >= WARMUP_STEPS or waited > PENDING_S:
                self._flush_warming()
            return
        self._book_step(event, record, warm=False)

    def _flush_warming(self) -> None:
        if not self._warming:
            return
        held, self._warming = self._warming, []
        first = steady_from([r.duration_s for _, r in held])
        for place, (event, record) in enumerate(held):
            self._book_step(event, record, warm=place < first)

    def _book_step(self, event: Step, record: StepRecord, *, warm: bool) -> None:
        end = record.end_s
        if end <= self.booked_s:
            return
        if self._startup:
            self._book(min(max(record.start_s, self.booked_s), end), "startup")
            self._startup = False
            if record.count > 1:
                # Its waits lie between the steps inside it, but for the first one's, which was start-up.
                self._book_merged(event, record, (record.wait_s or 0.0) * (record.count - 1), warm=warm)
            else:
                self._book_split(end, self._parts.inside(event, record, warm=warm))
        elif record.count > 1:
            self._book_merged(event, record, (record.wait_s or 0.0) * record.count, warm=warm)
        else:
            self._book_one(event, record, warm=warm)

    def _book_one(self, event: Step, record: StepRecord, *, warm: bool) -> None:
        """Book what lies before a step, its wait for data and itself."""
        begin, end, wait = self.booked_s, record.end_s, record.wait_s or 0.0
        start = record.start_s if record.start_s > begin else begin
        waiting = start - wait if start - wait - begin > NO_GAP_S else begin
        gap = self._parts.gap(begin, waiting, event) if waiting > begin else []
        waited = self._parts.wait(start - waiting, event, record) if start > waiting else []
        inside = self._parts.inside(event, record, warm=warm)
        if not self._phases and event.step_s is None:
            self._book_split(end, [*gap, *waited, *inside])  # parts that add up to their time: all at once
        else:
            self._book_split(waiting, gap)
            self._book_split(start, waited)
            self._book_split(end, inside)

    def _book_merged(self, event: Step, record: StepRecord, wait_s: float, *, warm: bool) -> None:
        """A merged line: its waits and gaps lie between the steps inside it, nobody knows where."""
        span = record.end_s - self.booked_s
        inside = min(span, record.duration_s * record.count)
        wait_s = min(wait_s, span - inside) if event.step_s is not None else min(wait_s, span)
        if wait_s > 0.0:
            self._book_split(self.booked_s + wait_s, self._parts.wait(wait_s, event, record))
        if event.step_s is not None:
            self._book(record.end_s - inside, "other")
        self._book_split(record.end_s, self._parts.inside(event, record, warm=warm))

    # --- moments

    def _on_phase(self, event: Phase) -> None:
        self._stalling = False
        time, phase = self._time, self._time.closed_phase
        if phase is not None:
            self._phases.append((time.wall_s(phase.start_s), time.wall_s(phase.end_s), phase.phase))
            self._settle()

    def _on_end(self, event: End) -> None:
        self._flush_warming()
        self._book_rest(self._time.wall_s())

    def _on_event(self, event: Event) -> None:
        now = self._time.wall_s(event.t_s)
        if self._stalling and event.event in ("train_begin", "train_end", "interrupt", "exception"):
            self._book(now, "stall", over_phases=False)  # what ended a standstill was part of it until then
            self._stalling = False
        if event.event == "train_begin":
            self._flush_warming()
            attempt_lost = self._time.steps.repeat_until is not None or (not self._startup and self._oom_in_between())
            self._book(now, "lost" if attempt_lost else self._between_sessions())
            self._startup = True
        elif event.event in ("train_end", "interrupt"):
            self._flush_warming()
            self._settle()
            self._book(now, "startup" if self._startup else "other")
        elif event.event == "exception":
            self._flush_warming()
            # The step that failed never ended: its time bought nothing.
            self._book(now, "startup" if self._startup and not self._training_ever else "lost")
        else:
            self._settle()

    def _oom_in_between(self) -> bool:
        session = self._time.run.sessions[-2] if len(self._time.run.sessions) > 1 else None
        return session is not None and any(m.event == "oom" and m.t_s >= session.begin_s for m in self._time.run.moments)

    def _between_sessions(self) -> str:
        return "idle" if self._training_ever and not self._startup else "startup"

    def _settle(self) -> None:
        """Book what has become final without a step: stalls, and what nothing can explain any more."""
        run, now = self._time.run, self._time.wall_s()
        if run.open or (now - self.booked_s < SETTLE_S and not self._stalling):
            return  # pending: the open phase, or too young
        if self._warming and now - self._warming[0][1].end_s > PENDING_S:
            self._flush_warming()
        if run.training and (self._warming or not self._startup):
            stalled_since = self._time.stalled_since_s
            if stalled_since is not None:
                self._flush_warming()
                self._book(max(self.booked_s, self._time.wall_s(stalled_since)), "other")
                self._book(now, "stall", over_phases=False)
                self._stalling = True
            return
        horizon = now - PENDING_S
        if horizon > self.booked_s:
            self._book(horizon, self._mode())

    def _mode(self) -> str:
        """The bucket of seconds that no step and no phase explains."""
        if self._time.run.training:
            return "startup" if self._startup else "other"
        return "idle" if self._training_ever else "startup"

    def _book_rest(self, now: float) -> None:
        run = self._time.run
        if self._stalling and not run.open:
            self._book(now, "stall")
        for phase in run.open:
            self._phases.append((self._time.wall_s(phase.start_s), now, phase.phase))
        if run.left_how not in ("train_end", "interrupt", "exception") and self._training_ever and not self._startup:
            self._book(now, "other" if self._last_outcome() == "finished" else "lost")
        else:
            self._book(now, self._mode())

    def _last_outcome(self) -> str | None:
        end = self._time.run.end
        return end.outcome if end is not None else None

    # --- booking

    def _book(self, until: float, bucket: str, *, over_phases: bool = True) -> None:
        length = until - self.booked_s
        if length > 0.0:
            self._book_split(until, [(bucket, length)], over_phases=over_phases)

    def _book_split(self, until: float, parts: Parts, *, over_phases: bool = True) -> None:
        """Book everything until `until`: phases take their seconds first, the rest is shared like `parts`."""
        begin = self.booked_s
        length = until - begin
        if length <= 0.0:
            return
        rest = length
        if self._phases:
            if over_phases:
                for bucket, seconds in _phase_seconds(self._phases, begin, until):
                    self._put(bucket, seconds)
                    rest -= seconds
            self._phases = [p for p in self._phases if p[1] > until]
        self.booked_s = until
        if rest <= 0.0:
            return
        if len(parts) == 1 and parts[0][1] > NOTHING_S:
            self._put(parts[0][0], rest)
            return
        total = 0.0
        for _, seconds in parts:
            total += seconds
        if total <= NOTHING_S:
            self._put("other", rest)
            return
        scale = rest / total
        for bucket, seconds in parts:
            if seconds > 0.0:
                self._put(bucket, seconds * scale)

    def _charged(self) -> tuple[int, int]:
        """How many charged GPUs are in use, and how many have never been."""
        devices = self._time.charged
        unused = sum(device.unused for device in devices)
        # Without any there is the pseudo-device `cpu`.
        self._counts = (len(devices) - unused, unused) if devices else (1, 0)
        # One that has worked has worked: nothing to count again until a device is introduced.
        self._counted = devices if all(device.active and device.owned for device in devices) else None
        return self._counts

    def _put(self, bucket: str, wall_s: float) -> None:
        """Book wall seconds on every charged GPU; one that has never been used was idle, whatever the others did."""
        used, unused = self._counts or self._charged()
        if unused:
            if bucket in _WHOLE:
                used += unused
            else:
                self._add("idle", wall_s * unused)
        self._add(bucket, wall_s * used)

    def _add(self, bucket: str, gpu_s: float) -> None:
        if gpu_s <= 0.0:
            return
        seconds = self.seconds
        seconds[bucket] = seconds.get(bucket, 0.0) + gpu_s
        if self._price is None:
            self.unpriced[bucket] = self.unpriced.get(bucket, 0.0) + gpu_s
        else:
            self.cost[bucket] = self.cost.get(bucket, 0.0) + gpu_s * self._rate


def _phase_seconds(phases: list[tuple[float, float, str]], begin: float, until: float) -> Parts:
    """Seconds of each phase in the interval; where phases nest, the innermost (begun last) has the time."""
    inside = [(max(s, begin), min(e, until), s, name) for s, e, name in phases if s < until and e > begin]
    if len(inside) == 1:
        low, high, _, name = inside[0]
        return [(_PHASE_BUCKET.get(name, "other"), high - low)] if high > low else []
    edges = sorted({x for low, high, _, _ in inside for x in (low, high)})
    out = []
    for low, high in pairwise(edges):
        over = [(s, -e, name) for a, e, s, name in inside if a <= low and e >= high]
        if over:
            out.append((_PHASE_BUCKET.get(max(over)[2], "other"), high - low))
    return out


#: Buckets that hold for every charged GPU, used or not.
_WHOLE = frozenset({"startup", "stall", "idle"})
