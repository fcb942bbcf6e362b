"""Each scenario of the mock, through the engine: the story that a demo shows is the finding that it raises."""

from __future__ import annotations

import pytest

from trainbudget.engine.engine import Engine
from trainbudget.events import BudgetFact, End, Event, Fact, Header, Step, Tick
from trainbudget.findings import Severity
from trainbudget.gpu.mock import SCENARIOS, MockBackend


class Run:
    """A run of equal steps, sampled each second, whose facts go to the mock and to the engine."""

    def __init__(self, scenario: str, budget: BudgetFact) -> None:
        self.backend = MockBackend(scenario, own_pid=1234)
        self.engine = Engine()
        self.now_s = 0.1
        self._next_reading_s = 0.0
        self.tell(Header(run="story", backend="mock", pid=1234, process_started_s=-5.0, sample_period_s=1.0, budget=budget))
        for gpu in self.backend.open():
            gpu.owned = True
            self.engine.feed(gpu)
        self.tell(Event(t_s=self.now_s, event="train_begin", detail={"batch_size": 8}))

    def tell(self, fact: Fact) -> None:
        self.backend.observe(fact)
        self.engine.feed(fact)

    def step(self, number: int, wait_s: float, work_s: float, tokens: float) -> None:
        start_s = self.now_s + wait_s
        self.now_s = start_s + work_s
        step = Step(t_s=self.now_s, step=number, start_s=start_s, data_wait_s=wait_s, samples=8.0, loss=3.0 / (1 + number / 50))
        step.tokens, step.max_sequence_tokens = 8 * tokens, tokens
        self.tell(step)
        self.sample()

    def sample(self) -> None:
        for fact in self.backend.allocator(self.now_s):
            self.engine.feed(fact)
        if self.now_s >= self._next_reading_s:
            self.engine.feed(self.backend.read(0, now_s=self.now_s))
            self._next_reading_s = self.now_s + 1.0

    def stand(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now_s += 1.0
            self.sample()
            self.engine.feed(Tick(t_s=self.now_s))

    def end(self) -> dict[str, Severity]:
        self.tell(Event(t_s=self.now_s, event="train_end"))
        self.tell(End(t_s=self.now_s, outcome="finished"))
        return {finding.code: finding.severity for finding in self.engine.findings}


def story(
    scenario: str, *, steps: int = 300, wait_s: float = 0.01, work_s: float = 0.29, longest: float = 160.0, stand_s: int = 0
) -> dict[str, Severity]:
    """The findings of a run of a minute and a half, longest batch included, and of `stand_s` seconds without a step."""
    run = Run(scenario, BudgetFact(steps_total=steps, max_sequence_tokens=longest))
    for number in range(1, steps + 1):
        run.step(number, wait_s, work_s, tokens=96.0 + number * 37 % 64)
    run.stand(stand_s)
    return run.end()


@pytest.mark.parametrize(
    ("scenario", "arguments", "codes"),
    [
        ("idle", {"work_s": 0.5}, {"unused_gpu"}),
        ("input_bound", {"wait_s": 0.2, "work_s": 0.2}, {"input_bound"}),
        ("leak", {}, {"memory_leak", "oom_forecast"}),
        ("leak", {"steps": 150, "work_s": 0.4}, {"memory_leak", "oom_forecast"}),
        ("long_batch", {"longest": 400.0}, {"oom_forecast"}),
        ("fragmentation", {}, {"memory_fragmentation"}),
        ("neighbour", {}, {"foreign_memory"}),
        ("throttle", {}, {"thermal_throttle"}),
        ("lost", {}, {"gpu_lost"}),
        ("hang", {"stand_s": 150}, {"collective_hang"}),
    ],
)
def test_a_scenario_raises_what_it_is_about(scenario, arguments, codes):
    assert codes <= story(scenario, **arguments).keys()


@pytest.mark.parametrize("scenario", ["healthy", "unsupported"])
def test_a_scenario_without_a_fault_raises_no_warning(scenario):
    assert [code for code, severity in story(scenario).items() if severity is not Severity.INFO] == []


def test_every_scenario_has_its_test():
    told = {"idle", "input_bound", "leak", "long_batch", "fragmentation", "neighbour", "throttle", "lost", "hang"}
    assert told | {"healthy", "unsupported"} == set(SCENARIOS)
