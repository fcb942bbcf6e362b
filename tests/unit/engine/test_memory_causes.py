"""Post-mortems: one finding per error, its severity, and the cause the numbers point to."""

from __future__ import annotations

import pytest

from trainbudget.events import Event, Process
from trainbudget.findings import Severity
from unit.engine.feeding import findings
from unit.engine.minimal.memory import (
    MINIMAL,
    card,
    course,
    fail,
    flat,
    foreign,
    fragmentation,
    hold,
    leak,
    longest,
    optimizer_states,
    siblings,
    true_capacity,
)
from unit.engine.traces import GIB, Build

CAUSES = [name for name in MINIMAL if name.startswith("oom/")]


def post_mortem(events):
    found = findings(events, "oom")
    assert len(found) == 1, [f.name for f in findings(events)]
    return found[0]


def ended(build: Build):
    return build.end("failed", train_end=False)


@pytest.mark.parametrize("name", CAUSES)
def test_each_cause_is_told_from_the_others(name):
    found = post_mortem(MINIMAL[name]())
    assert found.name == name
    assert found.severity is Severity.CRITICAL
    assert found.gpu == 0
    assert found.evidence["requested_bytes"] > 0


@pytest.mark.parametrize("name", CAUSES)
def test_the_cause_holds_with_counters_that_are_never_reset(name):
    events = MINIMAL[name]()
    highest = 0.0
    for event in events:
        if type(event).__name__ == "Allocator":
            highest = max(highest, event.peak_allocated_bytes or 0.0, event.allocated_bytes)
            event.peak_allocated_bytes, event.peak_since = highest, "process"
    assert post_mortem(events).name == name


# --- severity


def test_an_error_in_a_trial_is_information():
    build = card().start()
    build.phase("trial", 3.0)
    build.events.pop()
    hold(build, 5.0, 30.0)
    fail(build, 9.0, reserved=39.0, phase="trial", end=False).wait(1.0)
    build.phase("trial", 1.0)
    course(build, 30, flat())
    found = post_mortem(build.end())
    assert found.severity is Severity.INFO
    assert [f.code for f in findings(build.events) if f.severity is not Severity.INFO] == []


def test_an_error_that_was_retried_is_a_warning_and_nothing_is_left_of_it():
    build = course(card().start(batch_size=32), 20, flat(15.0, 35.0))
    fail(build, 9.0, reserved=39.0, end=False)
    build.step = 0
    build.wait(2.0).moment("train_begin", batch_size=16)
    course(build, 200, flat(15.0, 25.0))
    events = build.end()
    found = post_mortem(events)
    assert found.severity is Severity.WARNING
    assert found.evidence["batch_size"] == 32
    assert [f.code for f in findings(events)] == ["oom"]


def test_an_error_that_somebody_caught_is_a_warning():
    build = course(card().start(), 20, flat(15.0, 35.0))
    fail(build, 9.0, reserved=39.0, end=False)
    assert post_mortem(course(build, 20, flat(15.0, 35.0)).end()).severity is Severity.WARNING


def test_an_error_that_nothing_follows_is_critical():
    build = course(card().start(), 20, flat(15.0, 35.0))
    fail(build, 9.0, reserved=39.0, end=False).wait(20.0)
    assert post_mortem(build.events).severity is Severity.CRITICAL


def test_the_exception_is_the_same_error():
    assert len(findings(true_capacity(), "oom")) == 1


def test_two_errors_are_two_findings():
    build = course(card().start(batch_size=32), 10, flat(15.0, 35.0))
    for size in (16, 8):
        fail(build, 9.0, reserved=39.0, end=False)
        build.step = 0
        build.wait(30.0).moment("train_begin", batch_size=size)
        course(build, 10, flat(15.0, 35.0))
    found = findings(build.end(), "oom")
    assert [f.evidence["batch_size"] for f in found] == [32, 16]


# --- from the exception alone


MESSAGE = (
    "CUDA out of memory. Tried to allocate 9.97 GiB. GPU 0 has a total capacity of 40.00 GiB of which 0.20 GiB is free. "
    "Including non-PyTorch memory, this process has 39.60 GiB memory in use. Of the allocated memory {allocated} GiB is "
    "allocated by PyTorch, and {unallocated} GiB is reserved by PyTorch but unallocated."
)


@pytest.mark.parametrize(
    ("allocated", "unallocated", "cause"), [("38.30", "0.85", "true_capacity"), ("25.10", "14.05", "fragmentation")]
)
def test_an_exception_is_read_for_its_numbers(allocated, unallocated, cause):
    build = course(card().start(), 12, flat(15.0, 25.0))
    message = MESSAGE.format(allocated=allocated, unallocated=unallocated)
    build.moment("exception", type="torch.OutOfMemoryError", message=message)
    found = post_mortem(ended(build))
    assert found.cause == cause
    assert found.evidence["allocated_bytes"] == pytest.approx(float(allocated) * GIB)
    assert found.evidence["requested_bytes"] == pytest.approx(9.97 * GIB)


def test_a_message_that_lists_another_process_blames_it():
    build = course(card().start(), 12, flat(15.0, 25.0))
    message = (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 40.00 GiB of which 0.30 GiB is free. "
        "Process 77 has 13.00 GiB memory in use. Including non-PyTorch memory, this process has 26.60 GiB memory in use. Of "
        "the allocated memory 25.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated."
    )
    build.moment("exception", type="OutOfMemoryError", message=message)
    assert post_mortem(ended(build)).cause == "foreign_memory"


def test_a_cap_of_the_process_is_nobody_elses_fault():
    build = course(card().start(), 40, flat(15.0, 24.0))
    course(build, 40, flat(15.0, 24.0, others=8.0))
    message = (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 40.00 GiB of which 7.00 GiB is free. "
        "25.00 GiB allowed; Of the allocated memory 24.00 GiB is allocated by PyTorch, and 0.10 GiB is reserved by PyTorch but "
        "unallocated."
    )
    build.moment("exception", type="OutOfMemoryError", message=message)
    found = post_mortem(ended(build))
    assert found.cause == "true_capacity"
    assert found.evidence["allowed_bytes"] == pytest.approx(25 * GIB)


def test_a_number_in_a_message_counts_visible_devices_only():
    build = card().start()
    build.events[1].owned = False  # GPU 0 is somebody else's; ours is GPU 1, which the process calls 0
    build.gpu(1, limit_gib=40.0)
    build.allocator[0].clear()
    del build.allocator[0]
    build.steps(12, allocator_every=1)
    build.moment(
        "exception",
        type="OutOfMemoryError",
        message="CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 40.00 GiB total capacity; 38.00 GiB already allocated; "
        "0 bytes free; 38.10 GiB reserved in total by PyTorch)",
    )
    assert post_mortem(ended(build)).gpu == 1


def test_a_library_that_starved_beside_the_cache():
    build = course(card().start(), 60, lambda n: {"rest": 15.0, "peak": 25.0, "reserved": min(25.0 + n * 0.5, 39.4)})
    build.moment("exception", type="RuntimeError", message="NCCL out of memory")
    assert post_mortem(ended(build)).cause == "fragmentation"


@pytest.mark.parametrize("message", ["shape '[2]' is invalid", "DataLoader worker (pid 1) is killed by signal: Killed. "])
def test_other_exceptions_are_none(message):
    build = course(card().start(), 12, flat())
    build.moment("exception", type="RuntimeError", message=message)
    assert findings(ended(build), "oom") == []


def test_an_event_without_any_number_still_has_a_finding():
    build = course(card().start(), 12, flat())
    build.events.append(Event(t_s=build.t, event="oom"))
    found = post_mortem(ended(build.wait(1.0)))
    assert found.cause in ("true_capacity", "longest_batch")


# --- what is not the cause


def test_states_that_have_fitted_once_are_not_the_cause():
    build = optimizer_states(22.0, fit=True)
    course(build, 4, flat(30.0, 37.0))
    assert post_mortem(ended(fail(build, 3.0, reserved=38.9))).cause == "true_capacity"


def test_a_leak_that_would_have_fitted_is_not_the_cause():
    build = leak(200, 4.0)  # 0.8 GiB grown, far from the limit
    assert post_mortem(ended(fail(build, 30.0, reserved=16.0))).cause == "true_capacity"


def test_others_that_would_not_have_helped_are_not_the_cause():
    build = course(card().start(), 40, flat(15.0, 36.0))
    course(build, 40, flat(15.0, 36.0, others=1.5))
    found = post_mortem(ended(fail(build, 9.0, reserved=37.0)))
    assert found.cause == "true_capacity"


def test_a_cache_that_is_smaller_than_the_request_is_not_the_cause():
    build = fragmentation(30)  # 3 GiB of cache
    assert post_mortem(ended(fail(build, 20.0))).cause == "true_capacity"


def test_peaks_that_never_varied_are_not_a_longer_batch():
    assert post_mortem(true_capacity()).cause == "true_capacity"


def test_contexts_of_siblings_are_not_foreign():
    assert post_mortem(ended(siblings(fail_it=True))).cause == "sibling_ranks"
    assert post_mortem(ended(foreign(fail_it=True))).cause == "foreign_memory"


def test_attributed_memory_counts_without_arithmetic():
    build = course(card().start(), 30, flat(15.0, 28.0))
    build.reading[0]["processes"] = [
        Process(pid=1, memory_bytes=28.4 * GIB, own=True),
        Process(pid=2, memory_bytes=6 * GIB, own=False, alive=True),
    ]
    course(build, 30, flat(15.0, 28.0, others=6.0))
    assert post_mortem(ended(fail(build, 8.0))).cause == "foreign_memory"


def test_the_longest_batch_is_named_although_unwinding_hid_it():
    found = post_mortem(ended(longest(fail_at=39.3)))
    assert found.cause == "longest_batch"
    assert found.evidence["allocated_bytes"] > 38 * GIB


def test_a_search_in_small_steps_is_told_three_times():
    """A framework that takes a tenth off the batch at a time fails a dozen times before it fits: that is one story."""
    build = course(card().start(batch_size=32), 10, flat(15.0, 35.0))
    for size in range(31, 19, -1):
        fail(build, 9.0, reserved=39.0, end=False)
        build.step = 0
        build.wait(10.0).moment("train_begin", batch_size=size)
        course(build, 10, flat(15.0, 35.0))
    found = findings(build.end(), "oom")
    assert [f.severity for f in found] == [Severity.WARNING] * 3
