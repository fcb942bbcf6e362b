"""Which provider, instance and region this machine is, told offline: firmware strings, cloud-init, environment. No network.

A signal set on laptops too (`AWS_REGION` and the like) is never enough by itself to name a provider.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trainbudget.errors import ConfigError

_AZURE_ASSET_TAG = "7783-7084-3265-9085-8269-3286-77"  # same on every Azure machine; the vendor alone also means Hyper-V

#: Firmware file, a text it must contain (lower case), provider.
_DMI = (
    ("sys_vendor", "amazon ec2", "aws"),
    ("bios_version", "amazon", "aws"),
    ("product_version", "amazon", "aws"),
    ("product_name", "google compute engine", "gcp"),
    ("chassis_asset_tag", _AZURE_ASSET_TAG, "azure"),
    ("chassis_asset_tag", "oraclecloud.com", "oci"),
    ("sys_vendor", "alibaba cloud", "alibaba"),
    ("product_name", "alibaba cloud", "alibaba"),
    ("sys_vendor", "tencent cloud", "tencent"),
    ("sys_vendor", "scaleway", "scaleway"),
)

_CLOUD_INIT = {"aws": "aws", "gce": "gcp", "azure": "azure", "oracle": "oci", "aliyun": "alibaba", "tencent": "tencent"}

#: Variables that only the provider's own machines set.
_ENVIRONMENT = (
    ("RUNPOD_POD_ID", "runpod"),
    ("VAST_CONTAINERLABEL", "vast"),
    ("SM_CURRENT_INSTANCE_TYPE", "aws"),
    ("AWS_BATCH_JOB_ID", "aws"),
    ("ECS_CONTAINER_METADATA_URI_V4", "aws"),
    ("CLOUD_ML_PROJECT_ID", "gcp"),
    ("AZUREML_RUN_ID", "azure"),
    ("PAPERSPACE_NOTEBOOK_REPO_ID", "paperspace"),
)

_REGION_VARIABLES = {"aws": ("AWS_REGION", "AWS_DEFAULT_REGION"), "gcp": ("CLOUD_ML_REGION",), "runpod": ("RUNPOD_DC_ID",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """What is known of the machine; `evidence` says from where."""

    provider: str | None = None
    instance: str | None = None
    region: str | None = None
    spot: bool | None = None
    evidence: str | None = None


def parse_instance(text: str) -> Instance:
    """`aws:p4d.24xlarge@us-east-1` -> provider, instance, region (the last two optional).

    Raises:
        ConfigError: no provider.
    """
    provider, _, rest = text.partition(":")
    instance, _, region = rest.partition("@")
    if not provider.strip():
        raise ConfigError(f"instance {text!r}: write provider:instance[@region], for example aws:p4d.24xlarge@us-east-1")
    return Instance(provider=provider.strip().lower(), instance=instance or None, region=region or None, evidence="given")


def detect_instance(environ: Mapping[str, str] | None = None, root: Path = Path("/")) -> Instance:
    """This machine's provider, instance, region and whether it is told to be spot; unknown parts are None."""
    environ = os.environ if environ is None else environ
    pricing = environ.get("TRAINBUDGET_PRICING", "").lower()
    spot = {"spot": True, "on_demand": False}.get(pricing)
    found = _given(environ) or _tpu(environ) or _cloud_init(root) or _dmi(root) or _from_environment(environ) or Instance()
    region = found.region or next((environ[v] for v in _REGION_VARIABLES.get(found.provider or "", ()) if environ.get(v)), None)
    return Instance(provider=found.provider, instance=found.instance, region=region, spot=spot, evidence=found.evidence)


def _given(environ: Mapping[str, str]) -> Instance | None:
    text = environ.get("TRAINBUDGET_INSTANCE")
    return None if not text else parse_instance(text)


def _tpu(environ: Mapping[str, str]) -> Instance | None:
    """`v5litepod-16` -> the price table's `tpu-v5e-16`. v4 and v5p count cores (two a chip), v5e and v6e chips."""
    name = environ.get("TPU_ACCELERATOR_TYPE") or environ.get("ACCELERATOR_TYPE") or ""
    generation, _, size = name.rpartition("-")
    if generation not in ("v4", "v5p", "v5litepod", "v5e", "v6e"):
        return None
    return Instance(
        provider="gcp", instance=f"tpu-{generation.replace('litepod', 'e')}-{size}", evidence="environment TPU_ACCELERATOR_TYPE"
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:  # absent, or root only
        return ""


def _cloud_init(root: Path) -> Instance | None:
    try:
        data = json.loads(_read(root / "run/cloud-init/instance-data.json") or "{}")
    except ValueError:
        return None
    common = data.get("v1", {}) if isinstance(data, dict) else {}
    provider = _CLOUD_INIT.get(str(common.get("cloud_name", "")).lower())
    if provider is None:
        return None
    meta = data.get("ds", {}).get("meta_data", {})
    instance = meta.get("instance_type") or meta.get("instance-type") or meta.get("imds", {}).get("compute", {}).get("vmSize")
    return Instance(provider=provider, instance=instance, region=common.get("region"), evidence="cloud-init")


def _dmi(root: Path) -> Instance | None:
    folder = root / "sys/class/dmi/id"
    for file, text, provider in _DMI:
        if text in _read(folder / file).lower():
            # Only Nitro firmware names the instance type.
            nitro = provider == "aws" and file == "sys_vendor"
            return Instance(
                provider=provider, instance=_read(folder / "product_name") or None if nitro else None, evidence=f"firmware {file}"
            )
    return None


def _from_environment(environ: Mapping[str, str]) -> Instance | None:
    for variable, provider in _ENVIRONMENT:
        if environ.get(variable):
            # SageMaker's `ml.*` prices lie above EC2's: the type is not a row of the table, so it is not named.
            return Instance(provider=provider, evidence=f"environment {variable}")
    try:
        sky = json.loads(environ.get("SKYPILOT_CLUSTER_INFO", "") or "{}")
    except ValueError:
        return None
    cloud = str(sky.get("cloud", "")).lower() if isinstance(sky, dict) else ""
    return Instance(provider=cloud, region=sky.get("region"), evidence="environment SKYPILOT_CLUSTER_INFO") if cloud else None
