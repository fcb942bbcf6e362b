"""One small job for all three ways in: a linear model, batches that take a known time to prepare, delays in the step."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from trainbudget.events import AnyEvent, Event, Phase, PhaseBegin, Step
from trainbudget.monitor import Monitor
from trainbudget.trace import read_trace

WIDTH = 4


class Examples(Dataset):
    """`count` examples with a label each."""

    def __init__(self, count: int) -> None:
        self._rows = torch.arange(count * WIDTH, dtype=torch.float32).reshape(count, WIDTH) / (count * WIDTH)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": self._rows[index], "labels": self._rows[index].sum()}


class SleepingCollator:
    """Takes `seconds` a batch; `slept_s` is the truth where it runs in this process."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.slept_s, self.calls = seconds, 0.0, 0

    def __call__(self, rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        began = time.monotonic()
        if self.seconds:
            time.sleep(self.seconds)
        batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        self.slept_s += time.monotonic() - began
        self.calls += 1
        return batch


class TokenCollator:
    """Batches of token ids whose length tells which batch it is."""

    def __call__(self, rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        length = 1 + int(rows[0]["x"][0] * 1000)
        ids = torch.ones((len(rows), length), dtype=torch.long)
        mask = torch.ones_like(ids)
        mask[:, -1] = 0
        return {"input_ids": ids, "attention_mask": mask, "x": torch.stack([r["x"] for r in rows]),
                "labels": torch.stack([r["labels"] for r in rows])}  # fmt: skip


class Linear(torch.nn.Module):
    """A model in the form the Trainer wants; `delay_s` a forward, `on_forward(number)` may raise."""

    def __init__(self, *, delay_s: float = 0.0, eval_delay_s: float = 0.0, on_forward: Any = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(WIDTH, 1)
        self.delay_s, self.eval_delay_s, self.on_forward, self.forwards = delay_s, eval_delay_s, on_forward, 0

    def forward(self, x: torch.Tensor, labels: torch.Tensor, **more: Any) -> dict[str, torch.Tensor]:
        self.forwards += 1
        if self.on_forward is not None:
            self.on_forward(self.forwards, len(x))
        delay_s = self.delay_s if self.training else self.eval_delay_s
        if delay_s:
            time.sleep(delay_s)
        predicted = self.layer(x).squeeze(-1)
        return {"loss": ((predicted - labels) ** 2).mean(), "logits": predicted}


def watched(folder: Path, **settings: Any) -> Monitor:
    """A monitor with a simulated device that writes its record below `folder`."""
    return Monitor(
        **{
            "backend": "mock:healthy",
            "interval": 0.05,
            "sample_period": 0.2,
            "listen": "off",
            "price": "3.6 USD/h",
            "run_directory": str(folder / "run"),
            "log": False,
            **settings,
        }
    )


def facts_of(monitor: Monitor) -> list[AnyEvent]:
    """Everything recorded; closes the monitor."""
    monitor.close()
    assert monitor._counters.errors == {}
    assert monitor.directory is not None
    return list(read_trace(monitor.directory))


def steps(facts: list[AnyEvent]) -> list[Step]:
    return [f for f in facts if isinstance(f, Step)]


def count_of(facts: list[AnyEvent]) -> int:
    return sum(s.count or 1 for s in steps(facts))


def total(facts: list[AnyEvent], name: str) -> float:
    return float(sum(getattr(s, name) or 0.0 for s in steps(facts)))


def is_the_wait(measured_s: float, slept_s: float) -> bool:
    """The whole of what the collator slept, and little besides: fetching rows, and a busy machine that runs others first."""
    return 0.98 * slept_s <= measured_s < 1.25 * slept_s + 0.1


def moments(facts: list[AnyEvent], *names: str) -> list[Event]:
    return [f for f in facts if isinstance(f, Event) and (not names or f.event in names)]


def phases(facts: list[AnyEvent], name: str) -> list[tuple[float, float]]:
    """Begin and end of each phase of a name; each must have been announced."""
    begun = [f.t_s for f in facts if isinstance(f, PhaseBegin) and f.phase == name]
    ended = [f for f in facts if isinstance(f, Phase) and f.phase == name]
    assert len(begun) == len(ended)
    return [(b if e.start_s is None else e.start_s, e.t_s) for b, e in zip(begun, ended, strict=True)]


def seconds(facts: list[AnyEvent], name: str) -> float:
    return sum(end - begin for begin, end in phases(facts, name))
