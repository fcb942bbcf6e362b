"""Training is over or interrupted, and the process keeps the GPU."""

from __future__ import annotations

from collections.abc import Iterable

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.detect.devices import fresh
from trainbudget.engine.timeline import Timeline
from trainbudget.engine.tracks.device import DeviceTrack
from trainbudget.findings import CodeRecord, Route, Severity, Threshold

#: A driver with nobody on the card reports a few MiB; any context takes more than this.
HELD_BYTES = 64 * 1024**2

_EVIDENCE = {
    "idle_s": "seconds since training ended or the GPUs fell idle, whichever is later",
    "held_bytes": "memory held on the GPUs",
    "gpus": "logical indices",
    "cost": "what the idle time has cost, where the price is known",
}


class FinishedHoldingGpu(BaseDetector):
    """The process is still there after the end and holds memory without working."""

    record = CodeRecord(
        code="finished_holding_gpu",
        family="waiting",
        severity=Severity.WARNING,
        title="Training is over and the GPU is still held",
        condition="10 minutes after the end of training the process holds GPU memory and the GPU is below 5 % utilization; where "
        "utilization is not told, its power is that of rest.",
        silent="In notebooks (notebook_idle, after 30 minutes); when memory was freed; when it works; where memory, or both "
        "utilization and power, are unknown.",
        evidence=_EVIDENCE,
        thresholds=(
            Threshold(name="for_s", default=600.0, unit="s", reason="last uploads and evaluations after training take minutes"),
        ),
        levers=("L35",),
        route=Route.TICKET,
        runbook="End the process: it waits in a clean-up, a non-daemon thread or a process group. Check that the last "
        "checkpoint is there first.",
    )
    every_s = 15.0

    def check(self, view: View) -> Iterable[Signal]:
        if not _interactive(view.timeline):
            words = "training ended and its process holds {gpus} for {minutes:.0f} min without work"
            yield from _held("finished_holding_gpu", view, view.limit(self.record, "for_s"), words)


class NotebookIdle(BaseDetector):
    """An interactive session holds the GPU and nothing runs."""

    record = CodeRecord(
        code="notebook_idle",
        family="waiting",
        severity=Severity.WARNING,
        title="A notebook holds an idle GPU",
        condition="30 minutes after the last training, or the last step, in an interactive session it holds GPU memory at "
        "below 5 % utilization (at rest by its power, where utilization is not told).",
        silent="While a cell trains; in pauses shorter than that; where memory, or both utilization and power, are unknown.",
        evidence=_EVIDENCE,
        thresholds=(
            Threshold(
                name="for_s", default=1800.0, unit="s", reason="people think and have coffee between cells; idle cullers wait 60"
            ),
        ),
        levers=("L35",),
        route=Route.TICKET,
        runbook="Shut the kernel down, or free the memory (del trainer, model; torch.cuda.empty_cache()) on a shared card.",
    )
    every_s = 15.0

    def check(self, view: View) -> Iterable[Signal]:
        if _interactive(view.timeline):
            words = "the notebook holds {gpus} for {minutes:.0f} min and nothing runs"
            yield from _held("notebook_idle", view, view.limit(self.record, "for_s"), words)


def _interactive(timeline: Timeline) -> bool:
    """A notebook or a shell; where nobody says so, a process that outlives its Ctrl-C is one: a script would have ended."""
    told = timeline.header.host.interactive if timeline.header.host is not None else None
    return told if told is not None else timeline.run.left_how == "interrupt"


def _left_alone_s(timeline: Timeline) -> float | None:
    """Since when a loop in a notebook stands still: a cell may end, or wait at a breakpoint, without any word of it."""
    told = timeline.header.host.interactive if timeline.header.host is not None else None
    return timeline.stalled_since_s if told is True else None


def _held(code: str, view: View, limit_s: float, words: str) -> Iterable[Signal]:
    timeline = view.timeline
    run = timeline.run
    left_s = run.left_s if not run.training else _left_alone_s(timeline)
    if left_s is None or run.open or timeline.now_s - left_s < limit_s or timeline.since(left_s) < limit_s:
        return
    idle = [d for d in timeline.owned if d.idle_since_s is not None and _holds(d) and fresh(timeline, d)]
    waits = [timeline.since(max(left_s, d.idle_since_s or left_s)) for d in idle]
    kept = [d for d, seconds in zip(idle, waits, strict=True) if seconds >= limit_s]
    if not kept:
        return
    idle_s = max(waits)
    price = timeline.price.per_gpu_hour if timeline.price is not None else None
    gpus = [d.index for d in kept]
    name = f"GPU {gpus[0]}" if len(gpus) == 1 else f"{len(gpus)} GPUs"
    yield Signal(
        code,
        gpu=gpus[0] if len(gpus) == 1 else None,
        summary=words.format(gpus=name, minutes=idle_s / 60.0),
        evidence={
            "idle_s": round(idle_s, 1),
            "held_bytes": sum((d.last.memory_used_bytes or 0.0) for d in kept if d.last is not None),
            "gpus": gpus,
            "cost": None if price is None else round(price * idle_s / 3600.0 * len(kept), 4),
        },
    )


def _holds(device: DeviceTrack) -> bool:
    """Whether memory of ours is on the device: by its processes where they are told apart, else by what is used."""
    last = device.last
    if last is None or last.memory_used_bytes is None or last.memory_used_bytes < HELD_BYTES:
        return False
    processes = last.processes or []
    if processes and all(p.own is not None for p in processes):
        return any(p.own and p.alive is not False for p in processes)
    return True
