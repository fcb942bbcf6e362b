"""Which devices are ours, for every way of saying it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainbudget.gpu.mapping import Mapping, map_devices
from trainbudget.gpu.protocol import GpuIdentity

CARDS = tuple(GpuIdentity(index=i, ordinal=i, uuid=f"GPU-{i}a{i}a-1111", name="NVIDIA A100-SXM4-80GB") for i in range(4))
UNLIKE = (
    GpuIdentity(index=0, ordinal=0, uuid="GPU-t4", name="Tesla T4"),
    GpuIdentity(index=1, ordinal=1, uuid="GPU-h100", name="NVIDIA H100"),
)
SPLIT = (
    GpuIdentity(index=0, ordinal=0, uuid="GPU-p", name="NVIDIA A100", kind="mig_parent"),
    GpuIdentity(index=1, ordinal=0, uuid="MIG-1111-a", kind="mig", parent_uuid="GPU-p", gpu_instance=1, compute_instance=0),
    GpuIdentity(index=2, ordinal=0, uuid="MIG-2222-b", kind="mig", parent_uuid="GPU-p", gpu_instance=2, compute_instance=0),
)


def mapped(gpus=CARDS, visible=None, order=None, uuids=None, rank=None, world=None, used=None) -> Mapping:
    return map_devices(gpus, visible=visible, order=order, torch_uuids=uuids, local_rank=rank, local_world_size=world, used=used)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, (0, 1, 2, 3)),
        ("", ()),
        (" ", ()),
        ("-1", ()),
        ("0", (0,)),
        ("2,0", (2, 0)),
        ("3,1", (3, 1)),
        ("0,1,-1,2", (0, 1)),
        ("1gpu2,2ampere", (1, 2)),
        ("0-2", (0,)),
        ("0,0", ()),
        ("9", ()),
        ("1,9,2", (1,)),
        ("none", ()),
        (" 1 , 2 ", (1, 2)),
        ("+1", (1,)),
        ("0,GPU-1a1a", (0,)),
        ("GPU-2a2a-1111", (2,)),
        ("GPU-2a,GPU-0a", (2, 0)),
        ("gpu-2a", ()),
        ("GPU-2A2A", (2,)),
        ("GPU-", ()),
        ("GPU-ffff,GPU-0a", ()),
        ("GPU-0a,1", (0,)),
        ("GPU-0a,GPU-0a", ()),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(visible, expected):
    assert mapped(visible=visible).visible == expected


@pytest.mark.parametrize("visible", ["0,0", "9", "1gpu2", "GPU-ffff", "GPU-0a,GPU-0a", "GPU-0a,1"])
def test_a_value_that_is_hardly_meant_is_remarked(visible):
    assert mapped(visible=visible).remark


@pytest.mark.parametrize("visible", [None, "", "-1", "2,0", "GPU-2a"])
def test_a_clear_value_is_not_remarked(visible):
    found = mapped(visible=visible)
    assert (found.remark, found.ambiguous) == (None, None)


def test_a_prefix_of_several_uuids_names_none():
    twins = tuple(GpuIdentity(index=i, ordinal=i, uuid=f"GPU-aa{i}", name="A") for i in range(2))
    assert mapped(twins, visible="GPU-aa").visible == ()


def test_one_process_owns_the_first_visible_device():
    assert mapped(visible="3,1").owned == (3,)


def test_a_rank_owns_the_device_at_its_place():
    assert [mapped(visible="3,1", rank=rank, world=2).owned for rank in (0, 1)] == [(3,), (1,)]


def test_a_rank_whose_mask_shows_one_device_owns_it():
    """A launcher that gives each rank its own CUDA_VISIBLE_DEVICES leaves local rank 3 with ordinal 0."""
    assert mapped(visible="2", rank=3, world=4).owned == (2,)


def test_a_rank_beyond_the_visible_devices_is_ambiguous():
    found = mapped(visible="0,1", rank=2, world=3)
    assert found.owned == ()
    assert found.visible == (0, 1)
    assert "local rank 2" in (found.ambiguous or "")


def test_a_rank_below_zero_is_ambiguous():
    assert mapped(rank=-1, world=2).owned == ()


def test_several_processes_without_a_rank_are_ambiguous():
    assert mapped(rank=None, world=2).ambiguous


@pytest.mark.parametrize("uuid", ["GPU-2a2a-1111", "2a2a-1111", "gpu-2A2A-1111"])
def test_the_frameworks_uuid_decides(uuid):
    found = mapped(uuids=[uuid], rank=0, world=1)
    assert found.owned == found.visible == (2,)


TORCH = ["3a3a-1111", "1a1a-1111", "0a0a-1111"]


def test_the_framework_has_its_own_order():
    """What it says holds whatever the variables say: they may have been changed since it read them."""
    assert mapped(visible="2", uuids=TORCH).visible == (3, 1, 0)
    assert [mapped(visible="2", uuids=TORCH, rank=rank, world=3).owned for rank in range(3)] == [(3,), (1,), (0,)]


def test_a_framework_that_cannot_tell_leaves_it_to_the_variables():
    assert mapped(visible="2", uuids=[]).owned == (2,)


def test_a_process_alone_owns_every_device_that_it_holds_memory_on():
    """DataParallel and a device map use several devices in one process."""
    assert mapped(uuids=TORCH, used=[0, 1, 2]).owned == (3, 1, 0)
    assert mapped(uuids=TORCH, used=[1]).owned == (1,)
    assert mapped(visible="2,0", used=[1]).owned == (0,)


def test_a_stray_context_on_a_siblings_device_is_not_a_device_of_ours():
    assert mapped(rank=3, world=4, used=[0, 3]).owned == (3,)


def test_each_of_several_processes_may_use_several_devices():
    assert mapped(rank=1, world=2, used=[2, 3]).owned == (2, 3)


def test_a_rank_that_uses_another_place_than_its_own_owns_that():
    assert mapped(rank=0, world=2, used=[1]).owned == (1,)


def test_a_place_beyond_the_visible_devices_is_ambiguous():
    found = mapped(visible="0,1", used=[2])
    assert (found.owned, bool(found.ambiguous)) == ((), True)


def test_nothing_used_yet_leaves_it_to_the_rank():
    assert mapped(rank=1, world=2, used=[]).owned == (1,)


def test_a_uuid_that_the_driver_does_not_show_is_said():
    found = mapped(uuids=["ffff", "0a0a-1111"])
    assert (found.owned, found.visible) == ((), (0,))
    assert "ffff" in (found.ambiguous or "")


@pytest.mark.parametrize(
    ("arguments", "spare"),
    [
        ({}, (1, 2, 3)),
        ({"visible": "3,1"}, (1,)),
        ({"visible": "2"}, ()),
        ({"rank": 0, "world": 4}, ()),
        ({"rank": 1, "world": 4}, ()),
        ({"rank": 0, "world": 2}, (2, 3)),
        ({"visible": "3,1,0", "rank": 1, "world": 2}, (0,)),
        ({"uuids": TORCH}, (1, 0)),
        ({"uuids": TORCH, "used": [1]}, (3, 0)),
        ({"uuids": TORCH, "used": [0, 1, 2]}, ()),
        ({"uuids": TORCH, "rank": 1, "world": 2}, (0,)),
        ({"rank": 0, "world": 2, "used": [0, 1]}, ()),
        ({"uuids": ["ffff"]}, ()),
        ({"rank": 9, "world": 2}, ()),
    ],
)
def test_spare_devices_are_those_that_no_process_of_the_job_takes(arguments, spare):
    """A rank that took its siblings' devices for spare ones would charge the job for them a second time."""
    assert mapped(**arguments).spare == spare


def test_unlike_cards_without_an_order_are_ambiguous():
    found = mapped(UNLIKE, rank=0, world=1)
    assert found.owned == ()
    assert set(found.visible) == {0, 1}
    assert "CUDA_DEVICE_ORDER" in (found.ambiguous or "")


def test_one_number_among_unlike_cards_is_no_device_at_all():
    assert mapped(UNLIKE, visible="0").visible == ()


@pytest.mark.parametrize(
    "arguments",
    [
        {"order": "PCI_BUS_ID", "visible": "1"},
        {"visible": "GPU-h100"},
        {"uuids": ["h100"]},
        {"uuids": ["h100"], "visible": "0,1"},
    ],
)
def test_unlike_cards_are_clear_with_an_order_or_a_uuid(arguments):
    found = mapped(UNLIKE, **arguments)
    assert found.owned == (1,)
    assert found.ambiguous is None


@pytest.mark.parametrize(
    "visible", ["MIG-2222-b", "MIG-2222", "MIG-GPU-p/2/0", "MIG-2222-b,MIG-1111-a"], ids=["new", "prefix", "old", "several"]
)
def test_a_mig_name_is_one_slice(visible):
    slices = SPLIT if "GPU-p" not in visible else tuple(_with_hex_parent(gpu) for gpu in SPLIT)
    found = mapped(slices, visible=visible.replace("GPU-p", "GPU-abc1"))
    assert found.owned == found.visible == (2,)
    assert found.ambiguous is None
    assert bool(found.remark) == ("," in visible)


def _with_hex_parent(gpu: GpuIdentity) -> GpuIdentity:
    return GpuIdentity(
        index=gpu.index,
        ordinal=gpu.ordinal,
        uuid="GPU-abc1" if gpu.kind == "mig_parent" else gpu.uuid,
        kind=gpu.kind,
        parent_uuid=gpu.parent_uuid and "GPU-abc1",
        gpu_instance=gpu.gpu_instance,
        compute_instance=gpu.compute_instance,
    )


@pytest.mark.parametrize("visible", ["MIG-bogus", "MIG-", "MIG-GPU-abc1/9/0", None, "0", "GPU-p"])
def test_a_split_card_without_a_slice_is_ambiguous(visible):
    found = mapped(SPLIT, visible=visible)
    assert found.owned == ()
    assert found.ambiguous


@pytest.mark.parametrize("visible", [None, "0", "GPU-p"])
def test_the_only_slice_of_the_only_card_is_clear(visible):
    assert mapped(SPLIT[:2], visible=visible).owned == (1,)


def test_a_framework_that_gives_the_whole_cards_uuid_means_its_only_slice():
    assert mapped(SPLIT[:2], uuids=["p"]).owned == (1,)


def test_a_whole_cards_uuid_is_the_slice_that_the_variable_names():
    found = mapped(SPLIT, visible="MIG-2222-b", uuids=["p"])
    assert (found.owned, found.ambiguous) == ((2,), None)


def test_the_whole_cards_uuid_says_nothing_among_several_slices():
    found = mapped(SPLIT, uuids=["p"])
    assert found.owned == ()
    assert found.ambiguous


def test_no_devices_at_all():
    assert mapped((), visible="0", rank=0, world=1).owned == ()


ENTRIES = st.one_of(st.text(max_size=12), st.integers(-2, 9).map(str), st.sampled_from([gpu.uuid for gpu in (*CARDS, *SPLIT)]))


@given(
    gpus=st.sampled_from([(), CARDS, UNLIKE, SPLIT, SPLIT[:2]]),
    visible=st.none() | st.lists(ENTRIES, max_size=5).map(",".join),
    order=st.none() | st.sampled_from(["PCI_BUS_ID", "FASTEST_FIRST", "x"]),
    uuids=st.none() | st.lists(st.text(max_size=8) | st.sampled_from([gpu.uuid for gpu in CARDS]), max_size=3),
    rank=st.none() | st.integers(-1, 9),
    world=st.none() | st.integers(0, 9),
    used=st.none() | st.lists(st.integers(-1, 5), max_size=4),
)
def test_any_input_maps_to_devices_that_exist(gpus, visible, order, uuids, rank, world, used):
    found = mapped(gpus, visible, order, uuids, rank, world, used)
    indices = {gpu.index for gpu in gpus if gpu.kind != "mig_parent"}
    assert set(found.visible) <= indices
    assert set(found.owned) <= set(found.visible)
    assert set(found.spare) <= set(found.visible) - set(found.owned)
    assert len(set(found.visible)) == len(found.visible)
    assert len(set(found.owned)) == len(found.owned)


@given(order=st.permutations(range(4)), rank=st.integers(0, 3))
def test_ranks_of_a_permuted_mask_share_no_device(order, rank):
    visible = ",".join(map(str, order))
    assert mapped(visible=visible, rank=rank, world=4).owned == (order[rank],)
