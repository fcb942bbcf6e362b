"""The longest batches of a data set: which, how many tokens, at which step, and when nobody can say."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import BatchSampler, DataLoader, RandomSampler  # noqa: E402

from trainbudget.plan.script.batches import scan  # noqa: E402
from trainbudget.plan.script.capture import shape_of  # noqa: E402

LENGTHS = [4, 5, 6, 7, 30, 3, 2, 9]


def ids(length: int) -> torch.Tensor:
    return torch.ones(length, dtype=torch.long)


def padded(rows):
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def pad_mappings(rows):
    return {"input_ids": padded([r["input_ids"] for r in rows])}


def pad_pairs(rows):
    return padded([r[0] for r in rows]), padded([r[1] for r in rows])


FORMS = {
    "mappings": ([{"input_ids": ids(n)} for n in LENGTHS], pad_mappings),
    "pairs": ([(ids(n), ids(n)) for n in LENGTHS], pad_pairs),
    "rows": ([ids(n) for n in LENGTHS], padded),
}


def scanned(loader, per_step: int = 1):
    return scan(loader, next(iter(loader)), batches_per_step=per_step)


@pytest.mark.parametrize("form", FORMS)
def test_the_longest_batch_and_its_step(form):
    data, collate = FORMS[form]
    found = scanned(DataLoader(data, batch_size=2, collate_fn=collate))
    assert found.long_batches == [(3, 60), (4, 18), (2, 14), (1, 10)]
    assert shape_of(found.batch) == (2, 30)
    assert found.token_ratio == pytest.approx((60 + 18 + 14 + 10) / 4 / 60)


def test_accumulation_and_ranks_share_a_step():
    data, collate = FORMS["mappings"]
    found = scanned(DataLoader(data, batch_size=2, collate_fn=collate), per_step=2)
    assert found.long_batches == [(2, 60), (2, 18), (1, 14), (1, 10)]


def test_an_order_drawn_anew_in_each_process_has_no_step_but_a_length():
    data, collate = FORMS["mappings"]
    found = scanned(DataLoader(data, batch_size=2, collate_fn=collate, shuffle=True))
    assert found.long_batches == [(None, 60)]


def test_an_order_with_a_seed_of_its_own_is_known():
    data, collate = FORMS["mappings"]

    def loader():
        sampler = RandomSampler(data, generator=torch.Generator().manual_seed(3))
        return DataLoader(data, batch_sampler=BatchSampler(sampler, 2, False), collate_fn=collate)

    truth = [shape_of(batch)[1] for batch in loader()]
    one = loader()
    one.batch_sampler.sampler.generator.manual_seed(3)
    found = scan(one, next(iter(loader())), batches_per_step=1)
    assert found.long_batches[0] == (truth.index(30) + 1, 60)


def test_batches_that_somebody_composes_are_known_where_they_come_twice():
    data, collate = FORMS["mappings"]
    batches = [[0, 1, 2], [4], [3, 5, 6, 7]]
    found = scanned(DataLoader(data, batch_sampler=batches, collate_fn=collate))
    assert found.long_batches == [(3, 36), (2, 30), (1, 18)]


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter([{"input_ids": ids(4)}] * 4)


class Broken(list):
    def __getitem__(self, index):
        if index > 3:
            raise RuntimeError("no such row")
        return super().__getitem__(index)


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader([{"pixels": torch.zeros(3, 8, 8)}] * 4, batch_size=2),
        DataLoader(Stream(), batch_size=2, collate_fn=pad_mappings),
        DataLoader(Broken([{"input_ids": ids(4)}] * 6), batch_size=2, collate_fn=pad_mappings),
        DataLoader([(torch.zeros(5), torch.tensor(1))] * 4, batch_size=2),
    ],
    ids=["images", "stream", "unreadable", "features"],
)
def test_where_lengths_cannot_be_read_the_first_batch_stands_for_all(loader):
    first = next(iter(loader))
    found = scan(loader, first, batches_per_step=1)
    assert found.batch is first
    assert (found.long_batches, found.token_ratio) == ([], 1.0)
