"""The parts of script planning that need no child process: environment, batches at other shapes, devices that mean the host."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from trainbudget.plan.script.capture import reshaped, shape_of
from trainbudget.plan.script.environment import quiet_environment
from trainbudget.plan.script.host import HostMode
from trainbudget.plan.script.quantization import quantization_kind


def test_a_launcher_is_heard_and_taken_away():
    kept, said = quiet_environment(
        {"WORLD_SIZE": "8", "RANK": "3", "ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "HOME": "/h"}
    )
    assert (said["WORLD_SIZE"], said["RANK"]) == ("8", "3")
    assert not {"WORLD_SIZE", "RANK", "ACCELERATE_USE_FSDP", "FSDP_VERSION"} & set(kept)
    assert kept["TRAINBUDGET_LAUNCHED_FSDP"] == "2"
    assert kept["HOME"] == "/h"


def test_hubs_trackers_and_devices_are_off():
    kept, _ = quiet_environment({"WANDB_MODE": "online", "CUDA_VISIBLE_DEVICES": "0,1"})
    assert (kept["WANDB_MODE"], kept["HF_HUB_OFFLINE"], kept["CUDA_VISIBLE_DEVICES"]) == ("disabled", "1", "")


def test_a_batch_at_another_shape_scales_examples_and_tokens_only():
    batch = {
        "input_ids": torch.zeros(4, 32, dtype=torch.long),
        "labels": torch.zeros(4),
        "weight": torch.zeros(3),
        "scalar": torch.tensor(1),
    }
    new = reshaped(batch, (4, 32), (8, 64))
    assert (tuple(new["input_ids"].shape), new["input_ids"].dtype) == ((8, 64), torch.long)
    assert tuple(new["labels"].shape) == (8,)
    assert tuple(new["weight"].shape) == (3,)
    assert new["scalar"] is batch["scalar"]


def test_concatenated_pairs_stay_pairs():
    assert tuple(reshaped({"input_ids": torch.zeros(8, 32)}, (4, 32), (2, None))["input_ids"].shape) == (4, 32)


@pytest.mark.parametrize(
    ("batch", "shape"),
    [
        ({"input_ids": torch.zeros(4, 32, dtype=torch.long)}, (4, 32)),
        ({"pixel_values": torch.zeros(8, 3, 16, 16), "labels": torch.zeros(8)}, (8, None)),
        ([torch.zeros(16, 3), torch.zeros(16)], (16, None)),
        ({}, (None, None)),
    ],
)
def test_the_shape_of_a_batch(batch, shape):
    assert shape_of(batch) == shape


@pytest.mark.parametrize(
    ("config", "kwargs", "kind"),
    [
        (None, {}, "none"),
        (None, {"load_in_8bit": True}, "int8"),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}, {}, "nf4_double"),
        ({"load_in_4bit": True}, {}, "fp4"),
        ({"quant_method": "gptq", "bits": 4}, {}, "unknown"),
    ],
)
def test_quantization_by_its_configuration(config, kwargs, kind):
    assert quantization_kind(config, kwargs) == kind


def test_cuda_means_the_host_before_training():
    with HostMode():
        tensor = torch.ones(2).cuda()
        assert tensor.to("cuda:0", non_blocking=True).device.type == "cpu"
        assert tensor.to("cuda", dtype=torch.float16).dtype == torch.float16
        assert torch.zeros(2, device="cuda").device.type == "cpu"
        empty = torch.empty(2, device="meta")
        assert empty.to("cpu").is_meta
        assert empty.to(torch.bfloat16).dtype == torch.bfloat16
        assert torch.nn.Linear(2, 2).to("cuda").weight.device.type == "cpu"


def test_the_host_mode_can_be_switched_off():
    mode = HostMode()
    mode.enabled = False
    with mode, pytest.raises((AssertionError, RuntimeError)):
        torch.zeros(2, device="cuda")
