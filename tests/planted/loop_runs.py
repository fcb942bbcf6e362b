"""Plain loops through `Monitor`, each with one fault that the script really commits."""

from __future__ import annotations

import gc
import io
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch
from torch.utils.data import DataLoader

from planted.model import BATCH, CUDA_OUT_OF_MEMORY, Net, Rows, one_thread
from trainbudget import Budget, Monitor

Settings = dict[str, Any]


def ready(rows: int = BATCH) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches that are in memory already: nothing to wait for."""
    data = Rows(rows * 8)
    out = []
    for k in range(8):
        items = [data[k * rows + i] for i in range(rows)]
        out.append((torch.stack([r["x"] for r in items]), torch.stack([r["y"] for r in items])))
    return out


class Loop:
    """The usual lines of a training script."""

    def __init__(self, monitor: Monitor, *, lr: float = 1e-3) -> None:
        one_thread()
        self.monitor = monitor
        self.net = Net()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=lr)
        self.steps = 0
        self.batches = ready()

    def step(self, batch: tuple[torch.Tensor, torch.Tensor] | None = None, *, passes: int = 1, wait_s: float = 0.0) -> float:
        x, y = batch or self.batches[self.steps % len(self.batches)]
        with self.monitor.step(samples=len(x)):
            time.sleep(wait_s)
            for _ in range(passes):
                loss = self.net(x, y)["loss"]
                self.optimizer.zero_grad()
                loss.backward()
            self.optimizer.step()
            self.monitor.metrics(loss=float(loss.detach()))
        self.steps += 1
        return float(loss.detach())

    def until(self, seconds: float) -> Iterator[None]:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            yield


def fed(monitor: Monitor, loader: Any, seconds: float) -> None:
    """Train from a loader for a while."""
    loop = Loop(monitor)
    end = time.monotonic() + seconds
    for batch in monitor.batches(loader):
        loop.step((batch["x"], batch["y"]))
        if time.monotonic() >= end:
            return


def healthy(settings: Settings) -> None:
    """Two workers that keep up, evaluation, checkpoints and logs in decent doses."""
    with Monitor(**settings) as monitor:
        loader = DataLoader(Rows(100_000), batch_size=BATCH, num_workers=2, prefetch_factor=4, persistent_workers=True)
        loop = Loop(monitor)
        end = time.monotonic() + 75.0
        for batch in monitor.batches(loader):
            loop.step((batch["x"], batch["y"]), passes=6)
            if loop.steps % 50 == 0:
                with monitor.phase("eval"), torch.no_grad():
                    for x, y in loop.batches:
                        loop.net(x, y)
                with monitor.phase("save"):
                    torch.save(loop.net.state_dict(), io.BytesIO())
            if time.monotonic() >= end:
                break


def slow_loader(settings: Settings) -> None:
    """The loader has no workers and each batch is 0.25 s away (a slow network file)."""
    with Monitor(**settings) as monitor:
        # once a batch: its first row opens the file
        data = Rows(100_000, lambda i: time.sleep(0.25) if i % BATCH == 0 else None)
        fed(monitor, DataLoader(data, batch_size=BATCH, num_workers=0), 45.0)


def burst_loader(settings: Settings) -> None:
    """Four workers that each take two seconds for a batch: four batches at once, then none."""
    with Monitor(**settings) as monitor:
        data = Rows(100_000, lambda i: time.sleep(2.0) if i % 16 == 0 else None)
        fed(monitor, DataLoader(data, batch_size=16, num_workers=4), 60.0)


def flat_loss(settings: Settings) -> None:
    """The learning rate is 0 (a schedule that has come to its end). Half a minute counts as an hour here."""
    with Monitor(**settings, thresholds={"nothing_learned.flat_s": 30.0, "nothing_learned.flat_steps": 200.0}) as monitor:
        loop = Loop(monitor, lr=0.0)
        for _ in loop.until(50.0):
            loop.step()


def slower_steps(settings: Settings) -> None:
    """After 20 s each step waits 0.1 s for somebody else's answer; the budget is twice what a step took before."""
    with Monitor(log=False, record=False, listen="off", backend="none") as other:
        trial = Loop(other)
        began = time.monotonic()
        for _ in range(30):
            trial.step()
        step_s = (time.monotonic() - began) / 30
    with Monitor(**settings, budget=Budget(step_time_s=2.0 * step_s)) as monitor:
        loop = Loop(monitor)
        for _ in loop.until(20.0):
            loop.step()
        for _ in loop.until(130.0):
            loop.step(wait_s=0.1)


def small_cost_budget(settings: Settings) -> None:
    """A dollar a second, 20,000 steps, and a budget for the first minute and a half of them."""
    with Monitor(**settings, price="3600 USD/h", budget=Budget(cost="90 USD"), steps_total=20_000) as monitor:
        loop = Loop(monitor)
        for _ in loop.until(60.0):
            loop.step()


def device_out_of_memory(settings: Settings) -> None:
    """An allocation on the device fails in a step, with torch's own type and words."""
    with suppress(torch.OutOfMemoryError), Monitor(**settings) as monitor:
        loop = Loop(monitor)
        for _ in loop.until(15.0):
            loop.step()
        with monitor.step():
            raise torch.OutOfMemoryError(CUDA_OUT_OF_MEMORY)


def host_out_of_memory(settings: Settings) -> None:
    """The script asks for a pebibyte on the host; torch's allocator really refuses."""
    with suppress(RuntimeError), Monitor(**settings) as monitor:
        loop = Loop(monitor)
        for _ in loop.until(15.0):
            loop.step()
        with monitor.step():
            torch.empty(2**50, dtype=torch.uint8)


def hang(settings: Settings) -> None:
    """The training thread waits for a lock that another thread keeps for 150 s."""
    lock = threading.Lock()

    def keep() -> None:
        with lock:
            time.sleep(150.0)

    with Monitor(**settings) as monitor:
        loop = Loop(monitor)
        for _ in loop.until(15.0):
            loop.step()
        threading.Thread(target=keep, daemon=True).start()
        time.sleep(0.1)
        with lock:
            loop.step()
        for _ in loop.until(5.0):
            loop.step()


def garbage_collection(settings: Settings) -> None:
    """Two million small objects are alive, and every fourth step collects garbage."""
    alive = [[k] for k in range(2_000_000)]
    with Monitor(**settings) as monitor:
        loop = Loop(monitor)
        for _ in loop.until(80.0):
            loop.step()
            if loop.steps % 4 == 0:
                gc.collect()
    del alive


def repeated_steps(settings: Settings) -> None:
    """Training dies and is resumed from a checkpoint that is three quarters of its steps old."""
    with Monitor(**settings) as monitor:
        loop = Loop(monitor)
        for _ in loop.until(20.0):
            loop.step()
        reached = loop.steps
        monitor.exception(RuntimeError("the node went away"))
        monitor.train_begin()
        monitor.resume(step=reached // 4, highest_step=reached)
        for _ in range(reached):
            loop.step()


RUNS: dict[str, Callable[[Settings], None]] = {
    "loop_healthy": healthy,
    "loop_slow_loader": slow_loader,
    "loop_burst_loader": burst_loader,
    "loop_flat_loss": flat_loss,
    "loop_slower_steps": slower_steps,
    "loop_small_cost_budget": small_cost_budget,
    "loop_device_out_of_memory": device_out_of_memory,
    "loop_host_out_of_memory": host_out_of_memory,
    "loop_hang": hang,
    "loop_garbage_collection": garbage_collection,
    "loop_repeated_steps": repeated_steps,
}
