"""The environment of a script that is only planned: no network, no trackers, no launcher, outputs in a scratch folder."""

from __future__ import annotations

import tempfile
from pathlib import Path

#: What keeps hubs, trackers and their logins from the network. Read by the libraries at import.
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DISABLE_TELEMETRY": "1",
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "offline",
    "CLEARML_OFFLINE_MODE": "1",
    "TRAINBUDGET_DISABLED": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",
}

#: A launcher's variables: kept for the answer, taken from the process, which is alone.
LAUNCHER = (
    "WORLD_SIZE",
    "RANK",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
)


def quiet_environment(environ: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The environment for the script's process, and what a launcher (torchrun, accelerate) had said in it."""
    said = {k: v for k, v in environ.items() if k in LAUNCHER or k.startswith(("ACCELERATE_", "FSDP_"))}
    kept = {k: v for k, v in environ.items() if k not in said}
    scratch = tempfile.mkdtemp(prefix="trainbudget-plan-")
    tracking = {"MLFLOW_TRACKING_URI": Path(scratch, "mlflow").as_uri(), "TRAINBUDGET_PLAN_SCRATCH": scratch}
    sharded = {
        "TRAINBUDGET_LAUNCHED_FSDP": environ.get("FSDP_VERSION", "1") if environ.get("ACCELERATE_USE_FSDP") == "true" else "",
        "TRAINBUDGET_LAUNCHED_DEEPSPEED": environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", "2")
        if environ.get("ACCELERATE_USE_DEEPSPEED") == "true"
        else "",
    }
    # Tensors are fake: one thread does; a device must never be opened.
    still = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    return {**kept, **QUIET, **tracking, **sharded, **still}, said
