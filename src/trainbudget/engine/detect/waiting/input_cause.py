"""Why data comes late: what the waits look like, and what the host was doing meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from trainbudget.engine.epochs import planned_epochs
from trainbudget.engine.timeline import Timeline
from trainbudget.engine.tracks.series import median
from trainbudget.engine.tracks.step_shares import StepShares
from trainbudget.events import HostReading

#: The machine counts as full above this: the last tenth is the kernel's and other people's.
CPU_FULL = 0.85
#: CPUs that wait for disks this share of the time are waiting for them: at rest it is below 1 %.
IO_WAIT = 0.10
#: On a full machine whoever wants a CPU still gets this much of a core, unless ten processes wait for each of them: a loader
#: that takes less waits for something else, and the load is other people's.
WANTS_CPU = 0.10
#: Workers that each keep less than this much of a core busy are waiting themselves.
WORKER_WAITS = 0.5
#: Reads below this are log files.
READS_BYTES_PER_S = 5e6
#: A wait this many times the median of all is one of the long ones in a rhythm.
LONG_WAIT = 3.0
#: Long waits that make a rhythm; fewer where their distance is the number of workers, which chance does not hit twice; and
#: the share of their distances that must agree.
RHYTHM_WAITS = 5
WORKER_RHYTHM_WAITS = 3
RHYTHM_SHARE = 0.7
#: Correlation of wait and tokens from which the work is per token: half of the variation's shape, and beyond three and a half
#: standard errors (1 / sqrt(n)) of a correlation of nothing.
TOKEN_CORRELATION = 0.5
TOKEN_ERRORS = 3.5
TOKEN_STEPS = 20


@dataclass(frozen=True, slots=True)
class InputEvidence:
    """What is known; None where it is not."""

    workers: int | None
    cpu_count: int | None
    cpu_ratio: float | None
    io_wait_ratio: float | None
    worker_cpu_ratio: float | None
    read_bytes_per_s: float | None
    burst_period: int | None
    token_correlation: float | None
    wants_cpu: bool  # whether whoever loads the data takes part in the load; true where it is not known
    first_epoch: bool  # of several, or of an unknown number
    later_epoch: bool  # the data has been read once already
    host_open: bool  # the host is watched and has not said anything about the waits yet


def evidence_of(timeline: Timeline, shares: StepShares) -> InputEvidence:
    """Gather the evidence of the last minutes of training."""
    host = timeline.header.host
    begun_s = timeline.run.session.first_step_start_s if timeline.run.session is not None else None
    since_s = max(timeline.now_s - 300.0, begun_s or 0.0)
    readings = [h for h in timeline.host.window if h.t_s >= since_s]
    workers = _workers(timeline)
    children = _mean([h.children_cpu_ratio for h in readings])
    loaders = max(1, workers or 0)
    loading = children if workers else _mean([h.process_cpu_ratio for h in readings])
    fair = WANTS_CPU * min(1.0, (host.cpu_count or loaders) / loaders if host is not None else 1.0)
    epochs = timeline.run.epochs_total
    return InputEvidence(
        workers=workers,
        cpu_count=host.cpu_count if host is not None else None,
        cpu_ratio=_mean([h.cpu_ratio for h in readings]),
        io_wait_ratio=_mean([h.io_wait_ratio for h in readings]),
        worker_cpu_ratio=children / workers if children is not None and workers else None,
        read_bytes_per_s=_mean([h.read_bytes_per_s for h in readings]),
        burst_period=_rhythm(shares.waits_s, workers),
        token_correlation=_token_correlation(timeline),
        wants_cpu=loading is None or workers is None or loading / loaders >= fair,
        first_epoch=epochs == 1 and planned_epochs(timeline.header.settings) != 1,
        later_epoch=epochs > 1,
        host_open=not readings and timeline.host.last is not None,
    )


def is_burst(evidence: InputEvidence) -> bool:
    """Whether long waits come in the rhythm of the workers: each makes one batch at a time, then all are empty at once."""
    period = evidence.burst_period
    if period is None:
        return False
    return evidence.workers is None or (evidence.workers >= 2 and abs(period - evidence.workers) <= max(1, evidence.workers // 8))


def cause_of(evidence: InputEvidence) -> str | None:
    """The closed word, or None while two of them are equally good (a first epoch that reads from disk)."""
    cpu = evidence.cpu_ratio
    if cpu is not None and cpu >= CPU_FULL and evidence.wants_cpu:
        per_token = evidence.token_correlation
        return "tokenize" if per_token is not None and per_token >= TOKEN_CORRELATION else "cpu"
    if _waits_for_disk(evidence):
        return None if evidence.first_epoch else "storage"
    if is_burst(evidence):
        return "burst"
    if evidence.workers is None or (evidence.workers and evidence.host_open):
        return None
    if evidence.workers and evidence.cpu_count is not None and evidence.workers >= evidence.cpu_count and cpu is None:
        return "cpu"
    return "workers"


def _waits_for_disk(evidence: InputEvidence) -> bool:
    if evidence.io_wait_ratio is not None and evidence.io_wait_ratio >= IO_WAIT:
        return True
    slack = evidence.worker_cpu_ratio is not None and evidence.worker_cpu_ratio < WORKER_WAITS
    return slack and evidence.read_bytes_per_s is not None and evidence.read_bytes_per_s >= READS_BYTES_PER_S


def _workers(timeline: Timeline) -> int | None:
    last: HostReading | None = timeline.host.last
    if last is not None and last.loader_workers is not None:
        return last.loader_workers
    settings = timeline.header.settings or {}
    for name in ("dataloader_num_workers", "num_workers"):
        value = settings.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None


def _rhythm(waits_s: Sequence[float], workers: int | None) -> int | None:
    """Steps between long waits where they come at one distance, or None."""
    if len(waits_s) < 2 * RHYTHM_WAITS:
        return None
    mean = sum(waits_s) / len(waits_s)
    limit = max(LONG_WAIT * (median(list(waits_s)) or 0.0), mean)
    places = [i for i, wait in enumerate(waits_s) if wait > limit]
    if len(places) < WORKER_RHYTHM_WAITS:
        return None
    distances = Counter(b - a for a, b in pairwise(places))
    distance, count = distances.most_common(1)[0]
    if len(places) < RHYTHM_WAITS and distance != workers:
        return None
    # Batches that come just in time blur a rhythm by one step.
    near = sum(n for d, n in distances.items() if abs(d - distance) <= (1 if distance >= 4 else 0))
    return distance if distance >= 2 and count >= 2 and near >= RHYTHM_SHARE * (len(places) - 1) else None


def _token_correlation(timeline: Timeline) -> float | None:
    """Of a step's wait with its tokens, over the steps that tell both."""
    pairs = [
        (r.wait_s, r.event.tokens)
        for r in timeline.steps.window()
        if r.wait_s is not None and r.event.tokens is not None and r.count == 1
    ]
    n = len(pairs)
    if n < TOKEN_STEPS:
        return None
    mean_w, mean_t = sum(w for w, _ in pairs) / n, sum(t for _, t in pairs) / n
    spread_w = sum((w - mean_w) ** 2 for w, _ in pairs)
    spread_t = sum((t - mean_t) ** 2 for _, t in pairs)
    if spread_w <= 0.0 or spread_t <= 0.0:
        return None
    value = float(sum((w - mean_w) * (t - mean_t) for w, t in pairs) / (spread_w * spread_t) ** 0.5)
    return value if abs(value) >= TOKEN_ERRORS / n**0.5 else 0.0


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None
