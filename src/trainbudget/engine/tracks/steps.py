"""Optimizer steps: recent ones one by one, totals for the whole run, and the baseline of the steady ones."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque

import msgspec

from trainbudget.engine.tracks.series import median
from trainbudget.events import Step

#: Steps that are looked at together: 100, the window of the contract (or 10 minutes, whichever is first).
WINDOW_STEPS = 100
WINDOW_S = 600.0
#: Fewer than this say nothing.
MIN_STEPS = 20
#: A step this much longer than the median of the later ones is still warming up (compilation, cold caches, autotuning):
#: steady steps of real runs stay within +-30 %, batches of variable length included in the median of several.
WARMUP_RATIO = 1.5
#: Steps among which the end of the warm-up is looked for.
WARMUP_STEPS = 8

#: Upper bounds in seconds of the step-time histogram: from a toy model's 25 ms to the two minutes after which a run hangs.
STEP_BUCKETS_S = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)


class StepRecord(msgspec.Struct):
    """One step line with its derived times. All seconds are wall seconds without suspends; `count` steps if merged."""

    step: int
    start_s: float
    end_s: float
    duration_s: float  # of one step
    wait_s: float | None  # before one step
    interval_s: float  # from the previous step's end to this one's end, of one step; phases included
    phase_s: float  # seconds of eval, save, log, compile phases since the previous step's end (all of them)
    busy_s: float | None
    count: int
    event: Step
    steady: bool = True


class StepTrack:
    """Recent steps, totals, warm-up and baseline. `session_steps` restarts with each session."""

    def __init__(self) -> None:
        self.recent: deque[StepRecord] = deque(maxlen=400)
        self.total = 0  # lines' counts, repeated steps included
        self.highest: int | None = None
        self.reached: int | None = None  # highest step of the sessions before
        self.repeat_until: int | None = None  # steps up to this one repeat what was paid before
        self.session_steps = 0
        self.samples = 0.0
        self.tokens: float | None = None
        self.useful_tokens: float | None = None
        self.last_end_s: float | None = None
        self.steady_since_step: int | None = None  # first steady step of the session
        self.step_sum_s = 0.0
        self.wait_sum_s = 0.0
        self.wait_known = False
        self.histogram = [0] * (len(STEP_BUCKETS_S) + 1)  # steps by duration; the last are longer than every bound
        self._plain = 0  # newest step lines in a row that are steady and of one step
        self._warming: list[StepRecord] = []
        self._windows: dict[tuple[int, float, bool], list[StepRecord]] = {}  # since the newest step
        self._median_at = -1
        self._median: float | None = None
        self._baseline: float | None = None
        self._baseline_values: list[float] = []

    def begin_session(self, resume_highest: int | None = None, *, retry: bool = False) -> None:
        """A new session: baselines and warm-up restart; after a retry the steps done before count as repeated."""
        if self.highest is not None:
            self.reached = max(self.reached or 0, self.highest)
        self.repeat_until = self.highest if retry else resume_highest
        if not retry:
            self.highest = resume_highest
        self.session_steps = 0
        self.last_end_s = None
        self.steady_since_step = None
        self._warming.clear()
        self._baseline = None
        self._baseline_values.clear()
        self.recent.clear()
        self._plain = 0
        self._windows.clear()
        self._median_at = -1

    def on_step(self, event: Step, start_s: float, end_s: float, phase_s: float) -> StepRecord:
        count = max(1, event.count or 1)
        wait = event.data_wait_s
        previous_end = self.last_end_s if self.last_end_s is not None else start_s - (wait or 0.0)
        if event.step_s is not None:
            duration = event.step_s / count
        elif count > 1:
            duration = max(0.0, end_s - start_s - (wait or 0.0) * (count - 1) / count) / count
        else:
            duration = end_s - start_s
        interval = end_s - previous_end
        record = StepRecord(
            step=event.step,
            start_s=start_s,
            end_s=end_s,
            duration_s=duration,
            wait_s=None if wait is None else wait / count,
            interval_s=interval / count if interval > 0.0 else 0.0,
            phase_s=phase_s,
            busy_s=None if event.gpu_busy_s is None else event.gpu_busy_s / count,
            count=count,
            event=event,
        )
        self._sum(event, record)
        if self.last_end_s is None or end_s > self.last_end_s:
            self.last_end_s = end_s
        self.session_steps += count
        self.total += count
        if self.highest is None or event.step > self.highest:
            self.highest = event.step
        self._warm(record)
        self._plain = self._plain + 1 if record.steady and count == 1 else 0
        self.recent.append(record)
        if self._windows:
            self._windows.clear()
        return record

    def is_repeated(self, event: Step) -> bool:
        return self.repeat_until is not None and event.step <= self.repeat_until

    @property
    def warming(self) -> bool:
        """Whether the session's warm-up has not ended yet."""
        return self.steady_since_step is None

    def window(self, *, steps: int = WINDOW_STEPS, seconds: float = WINDOW_S, steady: bool = True) -> list[StepRecord]:
        """The newest step lines within `steps` and `seconds` (but at least 20 steps), oldest first. Not to be changed."""
        key = (steps, seconds, steady)
        cached = self._windows.get(key)
        if cached is None:
            cached = self._windows[key] = self._window(steps, seconds, steady)
        return cached

    def _window(self, steps: int, seconds: float, steady: bool) -> list[StepRecord]:
        newest = self.recent[-1].end_s if self.recent else 0.0
        if self._plain >= steps and newest - self.recent[-steps].end_s <= seconds:
            return list(self.recent)[-steps:]  # the usual case: nothing to weigh
        out: list[StepRecord] = []
        taken = 0
        for record in reversed(self.recent):
            if taken >= steps or (taken >= MIN_STEPS and newest - record.end_s > seconds):
                break
            if record.steady or not steady:
                out.append(record)
                taken += record.count
        out.reverse()
        return out

    def median_s(self) -> float | None:
        """Median duration of one steady step over the window; of all steps while nothing is steady yet."""
        if self._median_at != self.total:
            self._median_at = self.total
            records = self.window() or self.window(steady=False)
            self._median = median([r.duration_s for r in records])
        return self._median

    def baseline_s(self) -> float | None:
        """Median duration of the first steady steps (5 to 50 of them): what the run was like when it began."""
        return self._baseline

    def enough(self, records: list[StepRecord], minimum: int = MIN_STEPS) -> bool:
        return len(records) >= minimum or sum(r.count for r in records) >= minimum  # each is one step at least

    def _sum(self, event: Step, record: StepRecord) -> None:
        if event.samples:
            self.samples += event.samples
        if event.tokens is not None:
            self.tokens = (self.tokens or 0.0) + event.tokens
        if event.useful_tokens is not None:
            self.useful_tokens = (self.useful_tokens or 0.0) + event.useful_tokens
        self.step_sum_s += record.duration_s * record.count
        self.histogram[bisect_left(STEP_BUCKETS_S, record.duration_s)] += record.count
        if record.wait_s is not None:
            self.wait_known = True
            self.wait_sum_s += record.wait_s * record.count

    def _warm(self, record: StepRecord) -> None:
        if self.steady_since_step is not None:
            self._learn(record)
            return
        record.steady = False
        self._warming.append(record)
        if sum(r.count for r in self._warming) < WARMUP_STEPS:
            return
        first = steady_from([r.duration_s for r in self._warming])
        for late in self._warming[first:]:
            late.steady = True
            self._learn(late)
        if first < len(self._warming):
            self.steady_since_step = self._warming[first].step
            self._warming.clear()
        else:
            del self._warming[0]

    def _learn(self, record: StepRecord) -> None:
        if len(self._baseline_values) < 50:
            self._baseline_values.append(record.duration_s)
            if len(self._baseline_values) >= 5:
                self._baseline = median(self._baseline_values)


def steady_from(durations_s: list[float]) -> int:
    """Index of the first step that is no longer warm-up: none of the later half is exceeded by `WARMUP_RATIO`."""
    if len(durations_s) < 2:
        return 0
    later = median(durations_s[len(durations_s) // 2 :])
    assert later is not None
    for place, value in enumerate(durations_s):
        if value <= later * WARMUP_RATIO:
            return place
    return len(durations_s)
