"""A model named by a directory, a file, a cached Hugging Face name or inline values, as configuration values. No network."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainbudget.errors import ConfigError
from trainbudget.plan.train_spec import TrainSpec


def config_of(model: Mapping[str, Any] | str) -> dict[str, Any] | str:
    """The configuration's values; `pkg.mod:build` is passed on as it is.

    Raises:
        ConfigError: in one line: not found, not cached, unreadable.
    """
    if isinstance(model, Mapping):
        return dict(model)
    path = Path(model)
    if path.is_dir():
        path = path / "config.json"
    elif not path.exists() and ":" in model:
        return model
    if not path.exists():
        cached = _cached(model)
        if cached is None:
            raise ConfigError(
                f"model {model}: no such directory or file, and no configuration of that name is cached on this machine "
                f"(no network is used): run `hf download {model} config.json` once"
            )
        path = cached
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: no readable model configuration ({error})") from None
    if not isinstance(values, dict) or "model_type" not in values:
        raise ConfigError(f"{path}: not a model configuration: no model_type")
    return {"_name_or_path": model, **values}


def _cached(name: str) -> Path | None:
    """`config.json` of a name in the local hub cache: the newest snapshot."""
    home = Path(os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")).expanduser()
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    folder = hub / f"models--{name.replace('/', '--')}" / "snapshots"
    found = sorted(folder.glob("*/config.json"), key=lambda p: p.stat().st_mtime)
    return found[-1] if found else None


def title_of(model: Mapping[str, Any] | str, spec: TrainSpec) -> str:
    """Name and method: `Llama-3.2-3B · LoRA r=32`."""
    if isinstance(model, Mapping):
        name = Path(str(model.get("_name_or_path") or model.get("model_type") or "model")).name
    else:
        path = Path(model.partition(":")[2] if ":" in model and not Path(model).exists() else model)
        name = path.parent.resolve().name if path.name == "config.json" else path.name
    return f"{name} · {method_of(spec.peft, spec.quantization)}"


def method_of(peft: Mapping[str, Any] | None, quantization: str) -> str:
    """`full`, `LoRA r=16`, `QLoRA r=16 (nf4)`."""
    if peft is None:
        return "full"
    names = {"lora": "LoRA", "dora": "DoRA", "ia3": "IA3"}
    name = names.get(str(peft.get("type", "")).lower(), str(peft.get("type") or "adapter"))
    rank = f" r={peft['r']}" if peft.get("r") else ""
    return f"Q{name}{rank} ({quantization})" if quantization != "none" else f"{name}{rank}"
