"""Rows of a driver's process list become facts that claim no more than is known."""

from __future__ import annotations

from trainbudget.events import Process
from trainbudget.gpu.processes import pids_are_the_hosts, processes_of
from trainbudget.gpu.protocol import ProcessInfo

GIB = float(1 << 30)


def facts(rows, *, total=80 * GIB, lookup=None, trusted=True):
    return processes_of(rows, own_pid=7, memory_total_bytes=total, process_info=lookup, pids_trusted=trusted)


def test_own_process_is_recognised():
    assert facts([(7, 5 * GIB)]) == [Process(pid=7, memory_bytes=5 * GIB, own=True, alive=True, started_before_run=False)]


def test_a_foreign_process_is_looked_up():
    known = facts([(8, GIB)], lookup=lambda pid: ProcessInfo(alive=pid == 8, started_before_run=True))
    assert known == [Process(pid=8, memory_bytes=GIB, own=False, alive=True, started_before_run=True)]


def test_without_a_lookup_only_foreignness_is_known():
    assert facts([(8, GIB)]) == [Process(pid=8, memory_bytes=GIB, own=False)]


def test_memory_that_the_driver_does_not_tell_stays_unknown():
    assert facts([(8, None)])[0].memory_bytes is None


def test_rows_that_cannot_be_true_are_dropped():
    assert facts([(8, 81 * GIB), (0, GIB)]) == []


def test_any_size_is_believed_while_the_total_is_unknown():
    assert len(facts([(8, 81 * GIB)], total=None)) == 1


def test_two_rows_of_one_process_are_one_fact():
    assert [(f.pid, f.memory_bytes) for f in facts([(8, GIB), (8, 2 * GIB), (8, None)])] == [(8, 2 * GIB)]


def test_the_largest_comes_first():
    assert [f.pid for f in facts([(8, GIB), (9, 3 * GIB), (10, None)])] == [9, 8, 10]


def test_pids_of_another_namespace_claim_nothing():
    """In a container the driver gives the host's PIDs: one that equals ours by chance is somebody else's."""
    seen = facts([(7, 70 * GIB)], lookup=lambda pid: ProcessInfo(alive=True), trusted=False)
    assert seen == [Process(pid=7, memory_bytes=70 * GIB)]


def test_the_hosts_own_namespace_is_known_by_its_inode(tmp_path):
    link = tmp_path / "pid"
    link.symlink_to("pid:[4026531836]")
    other = tmp_path / "other"
    other.symlink_to("pid:[4026532001]")
    assert [pids_are_the_hosts(link), pids_are_the_hosts(other), pids_are_the_hosts(tmp_path / "none")] == [True, False, None]
