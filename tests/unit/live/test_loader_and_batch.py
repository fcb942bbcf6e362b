"""The timing proxy of a loader, and what a batch tells without being touched."""

from __future__ import annotations

import pickle

import pytest

from trainbudget.clock import ManualClock
from trainbudget.live.batch import BatchFacts, describe_batch
from trainbudget.live.loader import TimedLoader


class Tensor:
    """Shape, device and sum: all that may be asked of one."""

    def __init__(self, *shape, device="cpu", total=0):
        self.shape, self.device, self._total = shape, type("Device", (), {"type": device})(), total

    def sum(self):
        assert self.device.type == "cpu", "summing on a GPU waits for it"
        return self._total


class Loader:
    def __init__(self, clock, costs):
        self.clock, self.costs, self.epoch = clock, costs, 0

    def __iter__(self):
        self.clock.advance(0.5)
        for number, cost in enumerate(self.costs):
            self.clock.advance(cost)
            yield number

    def __len__(self):
        return len(self.costs)

    def set_epoch(self, epoch):
        self.epoch = epoch


def proxy(loader, clock, ahead=0):
    waits, seen = [], []
    made = TimedLoader(
        loader, waited=waits.append, describe=lambda b: f"batch {b}", seen=seen.append, now_s=clock.now_s, ahead=ahead
    )
    return made, waits, seen


def test_only_next_is_timed():
    clock = ManualClock()
    made, waits, seen = proxy(Loader(clock, [1.0, 2.0]), clock)
    for _ in made:
        clock.advance(100.0)
    assert sum(waits) == pytest.approx(3.5)
    assert seen == ["batch 0", "batch 1"]


def test_with_a_reader_that_is_ahead_a_batch_is_told_when_it_is_passed_on():
    clock = ManualClock()
    made, _, seen = proxy(Loader(clock, [1.0] * 3), clock, ahead=1)
    iterator = iter(made)
    next(iterator)
    assert seen == []
    next(iterator)
    assert seen == ["batch 0"]
    assert list(iterator) == [2]
    assert seen == ["batch 0", "batch 1", "batch 2"]


def test_it_is_the_loader_for_everybody_else():
    clock = ManualClock()
    loader = Loader(clock, [1.0])
    made, _, _ = proxy(loader, clock)
    assert isinstance(made, Loader)
    assert len(made) == 1
    made.set_epoch(3)
    made.epoch += 1
    assert loader.epoch == 4
    with pytest.raises(AttributeError):
        made.nothing


def test_pickled_it_is_the_loader_itself():
    made, _, _ = proxy([1, 2], ManualClock())
    assert pickle.loads(pickle.dumps(made)) == [1, 2]


def test_errors_of_the_loader_pass_through():
    def broken():
        yield 1
        raise LookupError("mine")

    made, _, _ = proxy(broken(), ManualClock())
    with pytest.raises(LookupError, match="mine"):
        list(made)


@pytest.mark.parametrize(
    ("batch", "facts"),
    [
        (
            {"input_ids": Tensor(8, 128), "attention_mask": Tensor(8, 128, total=900)},
            BatchFacts(8.0, 1024.0, 900.0, 128.0),
        ),
        ({"input_ids": Tensor(8, 128), "attention_mask": Tensor(8, 128, device="cuda")}, BatchFacts(8.0, 1024.0, None, 128.0)),
        ({"input_ids": Tensor(8, 128), "attention_mask": Tensor(8, 1, 128, 128)}, BatchFacts(8.0, 1024.0, None, 128.0)),
        ({"input_ids": Tensor(8, 128)}, BatchFacts(8.0, 1024.0, None, 128.0)),
        ({"pixel_values": Tensor(16, 3, 224, 224)}, BatchFacts(samples=16.0)),
        ((Tensor(4, 3), Tensor(4)), BatchFacts(samples=4.0)),
        (Tensor(5, 2), BatchFacts(samples=5.0)),
        ({}, BatchFacts()),
        ([], BatchFacts()),
        (None, BatchFacts()),
        ("text", BatchFacts()),
        ({"n": 3}, BatchFacts()),
    ],
)
def test_what_a_batch_tells(batch, facts):
    assert describe_batch(batch) == facts
