"""Every fact that can enter the engine. The set of these types *is* the trace format `trainbudget.trace/1`.

JSON Lines, one object a line, SI units. A key that is absent or null is unknown, never zero. Non-finite numbers travel as
the strings "nan", "inf" and "-inf". Unknown keys and unknown kinds are ignored when reading; names are never renamed.

`t_s` is when the fact was complete, in seconds since the run's own zero; it never decreases within a trace. A late fact
takes the previous line's `t_s` and keeps its own `start_s` (and `end_s`, where it knows better).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

SCHEMA = "trainbudget.trace/1"

Outcome = Literal["finished", "failed", "interrupted", "stopped"]

#: Phase names. `import`, `preprocess`, `load` refine `startup`; `sanity` and `trial` count as start-up.
PHASES = ("startup", "import", "preprocess", "load", "compile", "eval", "save", "log", "sanity", "trial")


class Fact(msgspec.Struct, tag_field="kind", omit_defaults=True, gc=False, kw_only=True):
    """What every fact has: the second at which it was complete."""

    t_s: float = 0.0


class Bound(msgspec.Struct, omit_defaults=True, gc=False, kw_only=True):
    """A number with its interval and its source; `low`..`high` is the 90 % interval."""

    value: float
    low: float | None = None
    high: float | None = None
    source: str | None = None


Number: TypeAlias = float | Bound | None


def value_of(number: Number) -> float | None:
    """The plain value of a number that may carry an interval."""
    return number.value if isinstance(number, Bound) else number


class BudgetFact(Fact, tag="budget"):
    """What the run may need; each a number or a `Bound`. Later facts override single keys."""

    memory_peak_bytes: Number = None
    step_time_s: Number = None
    run_time_s: Number = None
    cost: Number = None
    tokens_per_s: Number = None
    steps_total: Number = None
    max_sequence_tokens: Number = None
    optimizer_state_bytes: Number = None
    checkpoint_gather_bytes: Number = None
    flops_per_step: Number = None
    step_time_one_gpu_s: Number = None  # of the same per-GPU batch on one GPU alone
    eval_time_s: Number = None
    save_time_s: Number = None
    currency: str | None = None
    source: str | None = None  # for all keys that carry none of their own: given, plan, learned


class Price(Fact, tag="price"):
    """What one GPU costs an hour. `source` is `given`, a provider or a file; `date` is ISO."""

    per_gpu_hour: float | None = None
    currency: str | None = None
    source: str | None = None
    date: str | None = None
    spot: bool | None = None


class Host(msgspec.Struct, omit_defaults=True, gc=False, kw_only=True):
    platform: str | None = None  # linux, wsl, windows, mac
    cpu_count: int | None = None
    memory_limit_bytes: float | None = None
    interactive: bool | None = None


class BackendError(msgspec.Struct, omit_defaults=True, gc=False, kw_only=True):
    code: str | int | None = None
    text: str | None = None


class Header(Fact, tag="header"):
    """The first line of a trace."""

    schema: str = SCHEMA
    run: str | None = None
    id: str | None = None
    framework: str | None = None
    backend: str | None = None
    backend_error: BackendError | None = None
    driver_version: str | None = None
    sample_period_s: float | None = None
    pid: int | None = None
    process_started_s: float | None = None
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    started_at: str | None = None
    host: Host | None = None
    settings: dict[str, Any] | None = None
    environment: dict[str, Any] | None = None
    budget: BudgetFact | None = None
    price: Price | None = None
    ignore: list[str] | None = None
    thresholds: dict[str, float] | None = None


class Model(Fact, tag="model"):
    parameters: float | None = None
    trainable_parameters: float | None = None
    parameter_dtype: str | None = None
    autocast: str | None = None
    attention: str | None = None
    compiled: bool | None = None
    device_map: str | None = None
    optimizer: str | None = None
    effective_batch: float | None = None
    vocab_size: int | None = None


class LongBatch(msgspec.Struct, omit_defaults=True, gc=False, kw_only=True):
    """One of the longest micro-batches of the data set; `step` is None where it comes at a step that nobody knows."""

    step: int | None = None
    tokens: float


class Plan(Fact, tag="plan"):
    """What the planner knows of the future: peaks by tokens, the longest batches, the peak of each phase."""

    peak_by_tokens: list[list[float]] | None = None  # [[tokens of a micro-batch, bytes in the allocator, low, high]]
    longest: list[LongBatch] | None = None
    phase_peaks: dict[str, float] | None = None


class Gpu(Fact, tag="gpu"):
    """A device the run can see. `gpu` is the logical index that all other facts use."""

    gpu: int
    uuid: str | None = None
    name: str | None = None
    memory_total_bytes: float | None = None
    memory_limit_bytes: float | None = None
    memory_limit_source: str | None = None
    power_limit_w: float | None = None
    power_default_limit_w: float | None = None
    mig: bool | None = None
    pcie_gen_max: int | None = None
    pcie_width_max: int | None = None
    compute_capability: str | None = None
    peak_flops: dict[str, float] | None = None
    unified_memory: bool | None = None
    owned: bool | None = None
    visible: bool | None = None  # of an unowned one: this job could use it, so it is charged


class Process(msgspec.Struct, omit_defaults=True, gc=False, kw_only=True):
    pid: int | None = None
    memory_bytes: float | None = None
    own: bool | None = None
    alive: bool | None = None
    started_before_run: bool | None = None


class Reading(Fact, tag="reading"):
    """What a device answered. A query that it refused is absent; `errors` maps query names to NVML codes."""

    gpu: int
    utilization_ratio: float | None = None
    memory_utilization_ratio: float | None = None
    memory_used_bytes: float | None = None  # without the driver's part where memory_reserved_bytes is given
    memory_free_bytes: float | None = None
    memory_reserved_bytes: float | None = None
    context_bytes: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    sm_clock_hz: float | None = None
    sm_active_ratio: float | None = None
    tensor_active_ratio: float | None = None
    energy_j: float | None = None
    pcie_gen: int | None = None
    pcie_width: int | None = None
    throttle: list[str] | None = None
    ecc_corrected: float | None = None
    ecc_uncorrected: float | None = None
    processes: list[Process] | None = None
    errors: dict[str, int] | None = None
    count: int | None = None


class Allocator(Fact, tag="allocator"):
    """torch's caching allocator on one device.

    `peak_since` is `window` (since the previous line, the default) or `process` (torch's counter as read).
    """

    gpu: int
    at: str | None = None
    step: int | None = None
    allocated_bytes: float | None = None
    reserved_bytes: float | None = None
    active_bytes: float | None = None
    inactive_split_bytes: float | None = None
    peak_allocated_bytes: float | None = None
    peak_reserved_bytes: float | None = None
    peak_since: str | None = None
    alloc_retries: float | None = None
    ooms: float | None = None


class Step(Fact, tag="step"):
    """One optimizer step, or `count` merged ones (sums and maxima)."""

    step: int
    start_s: float | None = None
    end_s: float | None = None  # where the line was late: when the step really ended
    step_s: float | None = None  # merged steps: seconds inside the steps themselves
    data_wait_s: float | None = None
    data_wait_idle_s: float | None = None  # the part of data_wait_s in which the GPU was idle
    loader_wait_s: float | None = None
    forward_s: float | None = None
    backward_s: float | None = None
    optimizer_s: float | None = None
    communication_s: float | None = None
    pre_collective_s: float | None = None
    gpu_busy_s: float | None = None
    micro_steps: int | None = None
    samples: float | None = None
    tokens: float | None = None
    useful_tokens: float | None = None
    max_sequence_tokens: float | None = None
    loss: float | None = None
    grad_norm: float | None = None
    skipped: bool | None = None
    count: int | None = None


class PhaseBegin(Fact, tag="phase_begin"):
    phase: str
    items_total: float | None = None


class Progress(Fact, tag="progress"):
    phase: str | None = None
    items_done: float | None = None
    items_total: float | None = None
    recompiles: float | None = None


class Phase(Fact, tag="phase"):
    """A phase that ended at `t_s`."""

    phase: str
    start_s: float | None = None
    items_done: float | None = None
    items_total: float | None = None
    recompiles: float | None = None


class Event(Fact, tag="event"):
    """A named moment: train_begin, train_end, epoch_begin, epoch_end, resume, oom, exception, interrupt, gc, xid, backend."""

    event: str
    detail: dict[str, Any] | None = None


class HostReading(Fact, tag="host"):
    rss_bytes: float | None = None
    children_rss_bytes: float | None = None
    memory_available_bytes: float | None = None
    cpu_ratio: float | None = None
    process_cpu_ratio: float | None = None
    children_cpu_ratio: float | None = None
    io_wait_ratio: float | None = None
    read_bytes_per_s: float | None = None
    shm_free_bytes: float | None = None
    disk_free_bytes: float | None = None
    loader_workers: int | None = None


class Rank(Fact, tag="rank"):
    """Another rank's last word."""

    rank: int
    pid: int | None = None
    uuid: str | None = None
    step: int | None = None
    step_time_s: float | None = None
    data_wait_s: float | None = None
    loader_wait_s: float | None = None
    pre_collective_s: float | None = None
    memory_used_bytes: float | None = None
    power_w: float | None = None
    sm_clock_hz: float | None = None
    utilization_ratio: float | None = None
    gpu_seconds: float | None = None
    cost: float | None = None
    state: str | None = None


class Lint(Fact, tag="lint"):
    code: str
    setting: str | None = None
    suggestion: str | None = None


class Self(Fact, tag="self"):
    """What the monitor itself costs, every 10 s: seconds since the start, counts since the start."""

    hook_s: float | None = None
    sample_s: float | None = None
    feed_s: float | None = None
    cpu_s: float | None = None
    dropped: int | None = None
    merged: int | None = None
    errors: dict[str, int] | None = None


class Tick(Fact, tag="tick"):
    """Time goes on; nothing else is known."""


class End(Fact, tag="end"):
    outcome: str | None = None


AnyEvent: TypeAlias = (
    Header
    | BudgetFact
    | Price
    | Model
    | Plan
    | Gpu
    | Reading
    | Allocator
    | Step
    | PhaseBegin
    | Progress
    | Phase
    | Event
    | HostReading
    | Rank
    | Lint
    | Self
    | Tick
    | End
)

KINDS: Mapping[str, type[Fact]] = {str(c.__struct_config__.tag): c for c in AnyEvent.__args__}
