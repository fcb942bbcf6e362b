"""After an out-of-memory error: what happened, in numbers and one cause."""

from __future__ import annotations

from collections.abc import Iterable

from trainbudget.engine.detect.base import BaseDetector, Signal, View
from trainbudget.engine.detect.memory.oom_causes import CAUSES, Crime, cause_of, crime_of
from trainbudget.engine.detect.memory.standing import STANDING_EVIDENCE, gib, standing
from trainbudget.engine.oom_message import is_device_oom, parse_oom
from trainbudget.engine.timeline import Timeline
from trainbudget.engine.tracks.device import DeviceTrack
from trainbudget.engine.tracks.run import Moment
from trainbudget.findings import CodeRecord, Route, Severity

#: Seconds after which an error that nothing followed is taken as what it looks like: the end of the run. Whoever tries again
#: makes loaders and optimizer anew first, which takes 10 s on a busy host; an exception or an end says it at once.
SETTLE_S = 15.0
#: Rounds of one search for a batch that fits that are told: halving takes few; a framework that takes a tenth off at a time
#: takes a dozen, and they are one story. Rounds further apart than this are none of one search.
SEARCH_ROUNDS = 3
SEARCH_S = 600.0
#: An exception this soon after an `oom` event is the same error.
SAME_S = 10.0
_WORDS = {
    "longest_batch": "a longer batch than any before",
    "leak": "memory had leaked",
    "fragmentation": "enough is reserved, but nothing of it in one piece",
    "foreign_memory": "another process holds the memory",
    "optimizer_state": "the optimizer's state came on top",
    "eval_accumulation": "the evaluation kept its outputs on the GPU",
    "checkpoint_gather": "the checkpoint was gathered on the GPU",
    "true_capacity": "the run needs more than the device has",
    "pending_stream_frees": "memory freed on another stream is not reusable yet",
    "epoch_end": "what is done at an epoch's end did not fit",
    "sibling_ranks": "contexts of other ranks hold the memory",
}
#: ... and where the memory was wanted by a library outside of the allocator (NCCL, cuBLAS).
_BESIDE = "a library beside the allocator found nothing left: the allocator's cache holds it"


class Oom(BaseDetector):
    """A device ran out of memory: the post-mortem."""

    record = CodeRecord(
        code="oom",
        family="memory",
        severity=Severity.CRITICAL,
        title="Out of GPU memory",
        condition="The framework reported that a device allocation failed, or an exception says so. Information inside a trial "
        "phase (a search for the batch size), warning where training began again or went on, else critical.",
        silent="For errors of the host's memory (host_memory_forecast).",
        evidence={
            **STANDING_EVIDENCE,
            "requested_bytes": "the allocation that failed",
            "allocated_bytes": "in use at the failure",
            "cached_bytes": "reserved and not in use at the failure",
            "free_bytes": "free on the device at the failure",
            "total_bytes": "as the error says",
            "pending_bytes": "freed on another stream, not reusable yet",
            "allowed_bytes": "cap of this process' allocator, where one is set",
            "phase": "where it happened",
            "step": "the last step that completed",
            "batch_size": "of the attempt that failed, where told",
        },
        causes=CAUSES,
        levers=("L09", "L10", "L37", "L28", "L19", "L30", "L31", "L39"),
        route=Route.PAGE,
        runbook="The cause says what to change first: leak and eval_accumulation are bugs, not sizes; foreign_memory and "
        "sibling_ranks are not your batch; fragmentation is a setting; only longest_batch, optimizer_state and true_capacity "
        "need less memory. `trainbudget plan` says what fits. leak: find what keeps tensors from step to step, see memory_leak. "
        "foreign_memory: end the other process, or move the run to a free GPU. sibling_ranks: set each rank's device "
        "(torch.cuda.set_device(local_rank)) before anything touches CUDA. epoch_end: free what the epoch gathered (metrics, "
        "predictions) before it ends. "
        "checkpoint_gather: gather the state on the CPU, or save it sharded.",
    )

    def __init__(self) -> None:
        self._handled = 0  # moments
        self._pending: list[tuple[Moment, Crime, str, dict[str, object]]] = []
        self._last_oom_s = -1e9
        self._survived: dict[tuple[int | None, str], tuple[float, int]] = {}  # when, and how often in a row

    def check(self, view: View) -> Iterable[Signal]:
        timeline = view.timeline
        for moment in self._new(timeline):
            self._take(moment, timeline)
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        for entry in pending:
            moment, crime, cause, evidence = entry
            severity = severity_of(moment, crime, timeline)
            if severity is None:
                self._pending.append(entry)
                continue
            if severity is Severity.WARNING and self._is_told(moment, crime, cause):
                continue
            device = f" on GPU {crime.gpu}" if crime.gpu is not None else ""
            beside = cause == "fragmentation" and crime.message is not None and crime.message.outside
            numbers = ((crime.requested, "asked"), (crime.allocated, "in use"))
            told = ", ".join(f"{gib(value)} {what}" for value, what in numbers if value is not None)
            yield Signal(
                "oom",
                gpu=crime.gpu,
                phase=crime.phase,
                cause=cause,
                severity=severity,
                summary=f"out of memory{device}: {_BESIDE if beside else _WORDS[cause]}{f' ({told})' if told else ''}",
                evidence=evidence,
                once=True,
            )

    def _is_told(self, moment: Moment, crime: Crime, cause: str) -> bool:
        """Whether an error that training survived is another round of a search that has been told."""
        before_s, rounds = self._survived.get((crime.gpu, cause), (-1e9, 0))
        rounds = rounds + 1 if moment.t_s - before_s <= SEARCH_S else 1
        self._survived[(crime.gpu, cause)] = (moment.t_s, rounds)
        return rounds > SEARCH_ROUNDS

    def _new(self, timeline: Timeline) -> list[Moment]:
        """Moments since the last look, oldest first."""
        run = timeline.run
        fresh = run.moments_total - self._handled
        self._handled = run.moments_total
        return list(run.moments)[-fresh:] if fresh else []

    def _take(self, moment: Moment, timeline: Timeline) -> None:
        if moment.event == "oom":
            self._last_oom_s = moment.t_s
        elif moment.event == "exception":
            if moment.t_s - self._last_oom_s <= SAME_S:
                return
            if not is_device_oom(moment.detail.get("type"), moment.detail.get("message")):
                return
            self._last_oom_s = moment.t_s
        else:
            return
        device = _device(moment, timeline)
        crime = crime_of(moment, device, timeline)
        cause = cause_of(crime, device, timeline)
        evidence: dict[str, object] = standing(device, timeline).evidence() if device is not None else {}
        session = timeline.run.session
        evidence.update(
            requested_bytes=crime.requested,
            allocated_bytes=crime.allocated,
            cached_bytes=crime.cached,
            free_bytes=crime.free,
            total_bytes=crime.total,
            pending_bytes=crime.pending,
            allowed_bytes=crime.message.allowed_bytes if crime.message is not None else None,
            phase=crime.phase,
            step=timeline.run.last_step,
            batch_size=session.batch_size if session is not None else None,
        )
        self._pending.append((moment, crime, cause, evidence))


def severity_of(moment: Moment, crime: Crime, timeline: Timeline) -> Severity | None:
    """Info in a trial, warning where training went on or began again, critical where it ended; None = not known yet."""
    run = timeline.run
    if crime.phase == "trial" or (run.in_phase("trial") and moment.event == "oom"):
        return Severity.INFO
    if moment.event == "exception" or run.end is not None:
        return Severity.CRITICAL
    session = run.session
    if session is not None and session.begin_s > moment.t_s:
        return Severity.WARNING
    if run.exception is not None and run.exception.t_s >= moment.t_s:
        return Severity.CRITICAL
    if timeline.last_step is not None and timeline.last_step.event.t_s > moment.t_s:
        return Severity.WARNING
    return Severity.CRITICAL if timeline.since(moment.t_s) >= SETTLE_S else None


def _device(moment: Moment, timeline: Timeline) -> DeviceTrack | None:
    """Where it happened. What the allocators counted is surest; a number in a message is the process' own numbering of its
    visible devices, so it may name a device that is not ours: then it counts through the owned ones."""
    owned = timeline.owned
    failed = [d for d in owned if d.memory.failure is not None and abs(moment.t_s - d.memory.failure.t_s) <= SAME_S]
    if len(failed) == 1:
        return failed[0]
    if len(owned) == 1:
        return owned[0]
    gpu = moment.detail.get("gpu")
    if gpu is None:
        said = parse_oom(moment.detail.get("message"))
        gpu = said.gpu if said is not None else None
    if not isinstance(gpu, int) or isinstance(gpu, bool):
        return None
    if gpu in timeline.gpus and timeline.gpus[gpu].owned:
        return timeline.gpus[gpu]
    return owned[gpu] if 0 <= gpu < len(owned) else None
