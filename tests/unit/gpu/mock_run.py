"""A scripted training for mock backends: steps at known times, readings between them."""

from __future__ import annotations

from dataclasses import dataclass, field

from trainbudget.events import Allocator, BudgetFact, Event, Reading, Step
from trainbudget.gpu.mock import MockBackend


@dataclass
class MockRun:
    """Drives a backend through a run of equal steps and keeps what it said."""

    backend: MockBackend
    steps: int = 300
    wait_s: float = 0.0
    work_s: float = 0.25
    read: int | str = 0
    lengths: dict[int, float] = field(default_factory=dict)  # longest sequence by step; 128 elsewhere, None = not told
    tell_lengths: bool = True
    readings: list[Reading] = field(default_factory=list)
    allocators: list[Allocator] = field(default_factory=list)
    now_s: float = 0.0

    def go(self) -> MockRun:
        self.backend.observe(BudgetFact(steps_total=self.steps))
        self.backend.observe(Event(event="train_begin", t_s=0.0))
        next_s = 0.0
        for number in range(1, self.steps + 1):
            start_s = self.now_s + self.wait_s
            self.now_s = start_s + self.work_s
            tokens = self.lengths.get(number, 128.0) if self.tell_lengths else None
            self.backend.observe(
                Step(t_s=self.now_s, step=number, start_s=start_s, data_wait_s=self.wait_s, max_sequence_tokens=tokens)
            )
            if self.now_s >= next_s:
                self.take()
                next_s = self.now_s + 1.0
        return self

    def take(self) -> Reading:
        """One reading now, and the allocator's facts so far."""
        reading = self.backend.read(self.read, now_s=self.now_s)
        self.readings.append(reading)
        self.allocators += self.backend.allocator(self.now_s)
        return reading

    def idle_for(self, seconds: float) -> Reading:
        """Let time pass without a step."""
        for _ in range(round(seconds)):
            self.now_s += 1.0
            self.take()
        return self.readings[-1]
