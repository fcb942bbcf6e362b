"""What the hooks cost on the training thread, in microseconds a step: `python bench/hooks/run.py [--json] [--rounds N]`.

Each round times, one after the other in the same process, an empty callback and ours, so that a busy machine slows both;
the median over the rounds is reported, and the ratio of medians. The monitor is on as in a real run: threads, record,
metrics page, a simulated device. CUDA events are not part of it (no GPU is needed): they add two `cudaEventRecord` calls.

- `monitor`: `step_begin()` + `step_end()` as an adapter calls them; the goal is 3 us
- `loop`: `with monitor.step(): pass` beside an empty context manager
- `huggingface`: every hook of one optimizer step through the Trainer's own `CallbackHandler`, beside an empty `TrainerCallback`
- `lightning`: every hook of one batch, called as the Trainer calls them, beside an empty `Callback`
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

STEPS = 2000
GOAL_US = 3.0


def monitor_of(folder: str, **more: Any) -> Any:
    from trainbudget.monitor import Monitor

    monitor = Monitor(
        backend="mock:healthy", run_directory=f"{folder}/{time.monotonic_ns()}", listen="127.0.0.1:0", log=False, **more
    )
    monitor.start()
    monitor.train_begin()
    return monitor


def per_step_us(one_step: Callable[[], None]) -> float:
    """Microseconds a step; steps in small groups with a pause, so that the feeder works beside them as in a real run."""
    spent = []
    for _ in range(STEPS // 100):
        began = time.perf_counter()
        for _ in range(100):
            one_step()
        spent.append((time.perf_counter() - began) / 100 * 1e6)
        time.sleep(0.002)
    return statistics.median(spent)


def bare(folder: str) -> tuple[Callable[[], None], Callable[[], None]]:
    monitor = monitor_of(folder)
    begin, end = monitor.step_begin, monitor.step_end

    def ours() -> None:
        begin()
        end()

    class Empty:
        def step_begin(self) -> None: ...
        def step_end(self) -> None: ...

    empty = Empty()

    def theirs() -> None:
        empty.step_begin()
        empty.step_end()

    return theirs, ours


def loop(folder: str) -> tuple[Callable[[], None], Callable[[], None]]:
    monitor = monitor_of(folder)

    @contextmanager
    def nothing(**kwargs: Any) -> Any:
        yield

    def ours() -> None:
        with monitor.step(tokens=128, samples=8):
            pass

    def theirs() -> None:
        with nothing(tokens=128, samples=8):
            pass

    return theirs, ours


def huggingface(folder: str) -> tuple[Callable[[], None], Callable[[], None]]:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer_callback import CallbackHandler

    from trainbudget.huggingface import TrainBudgetCallback

    arguments = TrainingArguments(folder, report_to=[], use_cpu=True)

    def one_step_of(callback: Any) -> Callable[[], None]:
        state, control = TrainerState(), TrainerControl()
        handler = CallbackHandler([callback], None, None, None, None)

        def one_step() -> None:
            state.global_step += 1
            handler.on_step_begin(arguments, state, control)
            handler.on_pre_optimizer_step(arguments, state, control)
            handler.on_optimizer_step(arguments, state, control)
            handler.on_step_end(arguments, state, control)

        return one_step

    return one_step_of(TrainerCallback()), one_step_of(TrainBudgetCallback(monitor=monitor_of(folder)))


def lightning(folder: str) -> tuple[Callable[[], None], Callable[[], None]]:
    import lightning.pytorch as pl
    import torch

    from trainbudget.lightning import TrainBudgetCallback

    batch = {"input_ids": torch.zeros(8, 16, dtype=torch.long)}

    def one_step_of(callback: Any) -> Callable[[], None]:
        trainer = SimpleNamespace(global_step=0, loggers=[], progress_bar_callback=None)

        def one_step() -> None:
            callback.on_train_batch_start(trainer, None, batch, 0)
            callback.on_before_optimizer_step(trainer, None, None)
            trainer.global_step += 1
            callback.on_train_batch_end(trainer, None, None, batch, 0)

        return one_step

    return one_step_of(pl.Callback()), one_step_of(TrainBudgetCallback(monitor=monitor_of(folder)))


WAYS = {"monitor": bare, "loop": loop, "huggingface": huggingface, "lightning": lightning}


def measure(name: str, rounds: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        theirs, ours = WAYS[name](folder)
        pairs = [(per_step_us(theirs), per_step_us(ours)) for _ in range(rounds)]
    empty_us = statistics.median(empty for empty, _ in pairs)
    ours_us = statistics.median(our for _, our in pairs)
    own = sorted(our - empty for empty, our in pairs)
    return {
        "empty_us": round(empty_us, 2),
        "ours_us": round(ours_us, 2),
        "own_us": round(statistics.median(own), 2),
        "own_low_us": round(own[0], 2),
        "own_high_us": round(own[-1], 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("way", nargs="*", default=list(WAYS), help=", ".join(WAYS))
    args = parser.parse_args()
    rows = {name: measure(name, args.rounds) for name in args.way}
    if args.json:
        print(json.dumps(rows))
    else:
        print(
            f"{'':<13}{'empty':>8}{'with us':>9}{'own work':>10}   us a step, median of {args.rounds} rounds (lowest - highest)"
        )
        for name, row in rows.items():
            spread = f"({row['own_low_us']:.2f} - {row['own_high_us']:.2f})"
            print(f"{name:<13}{row['empty_us']:>8.2f}{row['ours_us']:>9.2f}{row['own_us']:>10.2f}   {spread}")
    missed = "monitor" in rows and rows["monitor"]["own_us"] > GOAL_US
    return 3 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
