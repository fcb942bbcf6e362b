"""`from_pretrained` without weights: models are built from their configuration on the meta device, also with a `device_map`,
quantization or adapters. Only configurations on this machine are read."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from trainbudget.errors import TrainBudgetError
from trainbudget.plan.script.quantization import bitsandbytes_stands_in, quantization_kind, quantized
from trainbudget.plan.simulated_device.cuda import Patches
from trainbudget.plan.tracing.flash_attention import use_flash_attention

#: Arguments of `from_pretrained` that are about where weights come from and how they are placed, not about the model.
_ABOUT_LOADING = frozenset(
    [
        "adapter_kwargs",
        "adapter_name",
        "allow_all_kernels",
        "cache_dir",
        "device_map",
        "device_mesh",
        "disable_mmap",
        "dtype",
        "force_download",
        "from_flax",
        "from_tf",
        "fusion_config",
        "generation_config",
        "ignore_mismatched_sizes",
        "key_mapping",
        "local_files_only",
        "low_cpu_mem_usage",
        "max_memory",
        "mirror",
        "offload_buffers",
        "offload_folder",
        "offload_state_dict",
        "output_loading_info",
        "proxies",
        "quantization_config",
        "resume_download",
        "revision",
        "state_dict",
        "subfolder",
        "token",
        "torch_dtype",
        "tp_plan",
        "tp_size",
        "trust_remote_code",
        "use_auth_token",
        "use_kernels",
        "use_safetensors",
        "variant",
        "weights_only",
        "_commit_hash",
        "_from_auto",
        "_from_pipeline",
        "_fast_init",
        "attn_implementation",
        "load_in_4bit",
        "load_in_8bit",
        "code_revision",
        "adapter_config",
        "tqdm_class",
        "distributed_config",
        "kernel_config",
        "experts_implementation",
    ]
)


class MissingConfiguration(TrainBudgetError):
    """A model, tokenizer or adapter that the script loads is not on this machine; the text says how to bring it."""


def missing(name: object, what: str) -> MissingConfiguration:
    """The one line for something that would have to be downloaded."""
    return MissingConfiguration(
        f"{what} of {name!s} is not on this machine (no network is used): run `hf download {name} {_FILES.get(what, '')}`".rstrip(
            "` "
        )
        + "` once, or pass a local directory"
    )


_FILES = {"configuration": "config.json", "tokenizer": "--include 'token*'", "adapter configuration": "adapter_config.json"}


class BuiltModels:
    """What was built instead of loaded: the notes, and the configuration of the last model."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.config: dict[str, Any] | None = None
        self.quantization = "none"

    def note(self, text: str) -> None:
        """Remember one line, once."""
        if text not in self.notes:
            self.notes.append(text)


def build_without_weights(patches: Patches, built: BuiltModels) -> None:
    """Replace the loaders of transformers and peft that are installed."""
    from transformers.modeling_utils import PreTrainedModel

    def from_pretrained(cls: Any, name: Any = None, *args: Any, **kwargs: Any) -> Any:
        return _build(cls, name, args, kwargs, built)

    bitsandbytes_stands_in(patches)
    patches.put(PreTrainedModel, "from_pretrained", classmethod(from_pretrained))
    _resize_without_statistics(patches, PreTrainedModel)
    _tokenizers_say_what_is_missing(patches)
    try:
        import peft
    except ImportError:
        return
    _adapters_without_weights(patches, peft)


def _build(cls: Any, name: Any, args: tuple[Any, ...], kwargs: dict[str, Any], built: BuiltModels) -> Any:
    config, extra = _configuration(cls, name, kwargs)
    attention = kwargs.get("attn_implementation")
    quantization = kwargs.get("quantization_config") or getattr(config, "quantization_config", None)
    for part in (config, getattr(config, "text_config", None)):
        # The model is built plain and quantized by us; the library that owns the kernels need not be installed.
        if part is not None and hasattr(part, "quantization_config"):
            del part.quantization_config
    kind = quantization_kind(quantization, kwargs)
    dtype = _dtype_of(config, name, kwargs, quantized=kind != "none")
    attention = attention or getattr(config, "_attn_implementation", None)
    flash = isinstance(attention, str) and "flash" in attention
    if isinstance(attention, str):
        config._attn_implementation = None if flash or attention == "flex_attention" else attention  # None: its own default
    model = _on_meta(lambda: cls(config, *args, **extra), dtype)
    if flash:  # the package with the kernels need not be installed
        use_flash_attention(model)
    elif attention == "flex_attention":
        built.note("flex_attention traced as sdpa")
    if kind not in ("none", "unknown"):
        model = quantized(model, kind, quantization)
    elif kind == "unknown":
        built.note("this quantization is not modelled: weights counted at full size")
    built.config, built.quantization = config.to_dict(), kind
    return model.eval()


def _configuration(cls: Any, name: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The configuration with the overrides among the arguments, and the arguments left for the model's constructor."""
    from transformers import PretrainedConfig

    config = kwargs.pop("config", None)
    if isinstance(config, PretrainedConfig):
        return copy.deepcopy(config), {k: v for k, v in kwargs.items() if k not in _ABOUT_LOADING}
    kept = ("subfolder", "revision", "trust_remote_code")
    loading = {k: v for k, v in kwargs.items() if k not in _ABOUT_LOADING or k in kept}
    try:
        config, left = cls.config_class.from_pretrained(
            config or name, return_unused_kwargs=True, local_files_only=True, **loading
        )
    except OSError:
        raise missing(name, "configuration") from None
    return config, {k: v for k, v in left.items() if k not in _ABOUT_LOADING}


def _on_meta(construct: Callable[[], Any], dtype: torch.dtype) -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype if dtype.is_floating_point else before)
    try:
        with torch.device("meta"):
            model = construct()
    finally:
        torch.set_default_dtype(before)
    model = model.to(dtype)
    if hasattr(model, "tie_weights"):
        model.tie_weights()
    return model


def _dtype_of(config: Any, name: Any, kwargs: dict[str, Any], *, quantized: bool) -> torch.dtype:
    """The dtype weights are loaded in, by the installed version's rule: v5 takes the checkpoint's, before it was fp32."""
    import transformers

    dtype = kwargs.get("dtype") if kwargs.get("dtype") is not None else kwargs.get("torch_dtype")
    if dtype is None:
        dtype = "auto" if int(transformers.__version__.split(".")[0]) >= 5 else torch.float16 if quantized else torch.float32
    if isinstance(dtype, dict):
        dtype = dtype.get("", "auto")
    if dtype == "auto":
        dtype = (
            getattr(config, "dtype", None) or getattr(config, "torch_dtype", None) or _dtype_in_checkpoint(name) or torch.float32
        )
    return getattr(torch, dtype.removeprefix("torch.")) if isinstance(dtype, str) else dtype


def _dtype_in_checkpoint(name: Any) -> torch.dtype | None:
    """The dtype of the first floating tensor named in a local safetensors header (a few hundred kilobytes, no weights)."""
    path = Path(str(name)) / "model.safetensors"
    if not path.is_file():
        return None
    import json

    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(min(size, 1 << 26)))
    kinds = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    return next((kinds[v["dtype"]] for k, v in header.items() if k != "__metadata__" and v.get("dtype") in kinds), None)


def _resize_without_statistics(patches: Patches, base: Any) -> None:
    """New embeddings are initialised from statistics of the old ones: values nobody has here."""
    resize = base.resize_token_embeddings

    @functools.wraps(resize)
    def plain(self: Any, new_num_tokens: Any = None, pad_to_multiple_of: Any = None, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("mean_resizing", None)
        return resize(self, new_num_tokens, pad_to_multiple_of, mean_resizing=False, **kwargs)

    patches.put(base, "resize_token_embeddings", plain)


def _tokenizers_say_what_is_missing(patches: Patches) -> None:
    from transformers import AutoConfig, AutoTokenizer

    for owner, what in ((AutoTokenizer, "tokenizer"), (AutoConfig, "configuration")):
        load: Any = owner.from_pretrained
        patches.put(owner, "from_pretrained", classmethod(_with_clear_miss(load.__func__, what)))


def _with_clear_miss(load: Callable[..., Any], what: str) -> Callable[..., Any]:
    def from_pretrained(cls: Any, name: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return load(cls, name, *args, **kwargs)
        except (OSError, ValueError) as error:
            if Path(str(name)).exists() or type(error).__name__ == "MissingConfiguration":
                raise
            raise missing(name, what) from None

    return from_pretrained


def _adapters_without_weights(patches: Patches, peft: Any) -> None:
    def from_pretrained(cls: Any, model: Any, model_id: Any, *args: Any, **kwargs: Any) -> Any:
        adapter_name = args[0] if args else kwargs.get("adapter_name", "default")
        is_trainable = args[1] if len(args) > 1 else kwargs.get("is_trainable", False)
        try:
            config = kwargs.get("config") or peft.PeftConfig.from_pretrained(model_id)
        except (OSError, ValueError):
            raise missing(model_id, "adapter configuration") from None
        config.inference_mode = not is_trainable
        return peft.get_peft_model(model, config, adapter_name=adapter_name)

    patches.put(peft.PeftModel, "from_pretrained", classmethod(from_pretrained))
