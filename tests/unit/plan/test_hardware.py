"""Finding a card by any of its names, never the wrong one."""

from __future__ import annotations

import pytest

from trainbudget.errors import ConfigError
from trainbudget.plan.hardware import GIB, MIB, find_gpu, gpus, require_gpu


def test_every_name_and_alias_finds_its_own_card():
    wrong = [
        (n, s.name) for s in gpus() for n in (s.name, *s.nvml_names, *s.aliases) if (f := find_gpu(n)) is None or f.name != s.name
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA H20", "H20"),
        ("NVIDIA H20-3e", "H20-3e"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40", "L40"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("rtx4090", "RTX-4090"),
        ("a100 80gb", "A100-80GB"),
        ("Tesla V100-SXM2-32GB", "V100-32GB"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX-PRO-6000-Workstation"),
        ("TPU v5 lite", "TPU-v5e"),
    ],
)
def test_look_alike_names_are_told_apart(given, name):
    assert require_gpu(given).name == name


@pytest.mark.parametrize(
    "given",
    [
        "A100",
        "V100",
        "NVIDIA A100-SXM-64GB",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "GRID A100-10C",
        "H100-96GB",
        "",
    ],
)
def test_ambiguous_and_foreign_variants_are_not_guessed(given):
    assert find_gpu(given) is None


def test_measured_memory_chooses_the_variant_and_refuses_a_contradiction():
    assert find_gpu("A100", 81920 * MIB).name in ("A100-80GB", "A100-80GB-PCIe")
    assert find_gpu("A100", 40960 * MIB).name in ("A100-40GB", "A100-40GB-PCIe")
    assert find_gpu("NVIDIA A100-SXM4-80GB", 64 * GIB) is None


def test_unknown_name_is_one_line_with_the_nearest():
    with pytest.raises(ConfigError, match=r"unknown GPU 'A100': did you mean A100-40GB, A100-80GB"):
        require_gpu("A100")


def test_limits_and_rates():
    a100 = require_gpu("A100-80GB")
    assert a100.memory_limit_bytes == pytest.approx(79.2 * GIB)
    assert (a100.sm, a100.peak("bf16"), a100.peak("fp32")) == (80, 312e12, 19.5e12)
    assert a100.bandwidth_bytes_per_s == 2039e9


def test_bf16_on_a_card_without_it_falls_to_fp32_and_says_unsupported():
    t4 = require_gpu("T4")
    assert not t4.supports("bf16")
    assert t4.peak("bf16") == t4.peak("fp32") == 8.1e12


def test_mig_slice_has_no_memory_limit_and_a_share_of_the_rates():
    mig = find_gpu("NVIDIA A100-SXM4-80GB MIG 2g.20gb")
    assert mig.memory_limit_bytes is None
    assert mig.peak("bf16") == pytest.approx(312e12 * 2 / 7)


def test_unverified_values_keep_their_mark_and_every_value_has_a_source():
    assert "bandwidth_gbs" in require_gpu("H20-3e").unverified
    assert [s.name for s in gpus() if not {"mem", "flops", "bw"} <= set(s.sources)] == []
