"""Out-of-memory messages: each wording of PyTorch over the years, its neighbours, and what is none of them."""

from __future__ import annotations

import pytest

from trainbudget.engine.oom_message import is_device_oom, is_host_oom, parse_oom

MIB, GIB = 2.0**20, 2.0**30


def test_the_oldest_wording():
    said = parse_oom(
        "CUDA out of memory. Tried to allocate 12.50 MiB (GPU 0; 10.92 GiB total capacity; 8.57 MiB already allocated; "
        "9.28 GiB free; 4.68 MiB cached)"
    )
    assert said is not None
    assert said.gpu == 0
    assert said.requested_bytes == pytest.approx(12.5 * MIB)
    assert said.total_bytes == pytest.approx(10.92 * GIB)
    assert said.allocated_bytes == pytest.approx(8.57 * MIB)
    assert said.free_bytes == pytest.approx(9.28 * GIB)
    assert said.reserved_bytes == pytest.approx(4.68 * MIB)


def test_the_wording_until_2_0():
    said = parse_oom(
        "CUDA out of memory. Tried to allocate 984.00 MiB (GPU 3; 47.50 GiB total capacity; 22.15 GiB already allocated; "
        "68.88 MiB free; 22.16 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting "
        "max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF"
    )
    assert said is not None
    assert (said.gpu, said.others_count, said.outside) == (3, 0, False)
    assert said.reserved_bytes == pytest.approx(22.16 * GIB)
    assert said.allocated_bytes == pytest.approx(22.15 * GIB)
    assert said.free_bytes == pytest.approx(68.88 * MIB)


def test_the_wording_since_2_1_adds_what_is_unallocated():
    said = parse_oom(
        "CUDA out of memory. Tried to allocate 1.70 GiB. GPU 1 has a total capacty of 6.00 GiB of which 0 bytes is free. "
        "Process 41 has 1.25 GiB memory in use. Process 42 has 768.00 MiB memory in use. Including non-PyTorch memory, this "
        "process has 3.90 GiB memory in use. Of the allocated memory 2.93 GiB is allocated by PyTorch, and 512.00 MiB is "
        "reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting max_split_size_mb."
    )
    assert said is not None
    assert said.total_bytes == pytest.approx(6 * GIB)
    assert said.free_bytes == 0.0
    assert said.process_bytes == pytest.approx(3.9 * GIB)
    assert said.others_count == 2
    assert said.others_bytes == pytest.approx(2.0 * GIB)
    assert said.reserved_bytes == pytest.approx(2.93 * GIB + 512 * MIB)


def test_private_pools_and_a_cap_for_the_process():
    said = parse_oom(
        "HIP out of memory. Tried to allocate 22.00 MiB. GPU 0 has a total capacity of 23.65 GiB of which 11.06 MiB is free. "
        "9.00 GiB allowed; Of the allocated memory 8.90 GiB is allocated by PyTorch, with 55.00 MiB allocated in private pools "
        "(e.g., CUDA Graphs), and 94.87 MiB is reserved by PyTorch but unallocated."
    )
    assert said is not None
    assert said.allowed_bytes == pytest.approx(9 * GIB)
    assert said.private_pool_bytes == pytest.approx(55 * MIB)
    assert said.allocated_bytes == pytest.approx(8.9 * GIB)


@pytest.mark.parametrize(
    ("text", "requested", "outside"),
    [
        (
            "MPS backend out of memory (MPS allocated: 5.05 GB, other allocations: 2.36 GB, max allowed: 18.13 GB). Tried to "
            "allocate 640.00 KB on private pool.",
            640 * 2.0**10,
            False,
        ),
        ("XPU out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.00 GiB.", 2 * GIB, False),
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1073741824 bytes.", GIB, False),
        ("NCCL error in: ProcessGroupNCCL.cpp: unhandled cuda error. Failed to CUDA calloc 4194304 bytes", 4 * MIB, True),
        ("NCCL out of memory", None, True),
        ("CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA", None, True),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", None, True),
    ],
)
def test_other_words_for_it(text, requested, outside):
    said = parse_oom(text)
    assert said is not None
    assert said.requested_bytes == (None if requested is None else pytest.approx(requested))
    assert said.outside is outside
    assert is_device_oom("RuntimeError", text)


def test_an_overflowed_size_is_unknown():
    said = parse_oom("CUDA out of memory. Tried to allocate more than 1EB memory.")
    assert said is not None
    assert said.requested_bytes is None


@pytest.mark.parametrize(
    "text", [None, "", "loss is nan", "memory", "DataLoader worker (pid 12) is killed by signal: Killed. Out of memory?"]
)
def test_what_is_no_device_out_of_memory(text):
    assert parse_oom(text) is None


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("RuntimeError", "DataLoader worker (pid 4242) is killed by signal: Killed."),
        (
            "RuntimeError",
            "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes.",
        ),
        (
            "RuntimeError",
            "DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's workers are out",
        ),
        ("MemoryError", ""),
        ("OSError", "[Errno 12] Cannot allocate memory"),
    ],
)
def test_the_host_is_not_the_device(kind, text):
    assert is_host_oom(kind, text)
    assert not is_device_oom(kind, text)


def test_the_type_alone_is_enough():
    assert is_device_oom("torch.cuda.OutOfMemoryError", None)
    assert is_device_oom("OutOfMemoryError", "")
    assert not is_device_oom("RuntimeError", "shape mismatch")
    assert not is_host_oom("RuntimeError", "CUDA out of memory. Tried to allocate 2.00 GiB")


@pytest.mark.parametrize("value", [None, [], {"text": "CUDA out of memory"}, 7, 1e9, b"CUDA out of memory"])
def test_what_is_no_text_says_nothing(value):
    assert parse_oom(value) is None
    assert not is_device_oom(value, value)
    assert not is_host_oom(value, value)


def test_a_long_text_costs_no_time():
    assert parse_oom("Process 1 has " * 200_000) is None
