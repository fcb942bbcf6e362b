"""peft's MetaMathQA comparison (method_comparison/MetaMathQA/run.py): its loop and the adapter configuration of each published
run.

The adapter configurations are read from a clone of https://github.com/huggingface/peft given with ``--peft``. Restated here is
what decides about memory: batches are padded (a mask goes into attention); buckets of 20 batches run from long to short, so a
short batch precedes the longest one; the cache is emptied every 10 steps, so also just before each bucket's longest batch;
``outputs`` and ``loss`` live until they are bound again.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import torch

from trainbudget.plan.memory import TargetGpu, Trace, spec_of, trace_step
from trainbudget.plan.tracing.from_config import model_builder
from trainbudget.plan.tracing.optimizers import optimizer_of

FOLDER = "method_comparison/MetaMathQA/results"
SHORT_BATCH = 120  # tokens of the batch before the longest one; only that it is much shorter matters


def trace_row(row: dict[str, Any], clone: Path, target: TargetGpu) -> Trace:
    """The traced step of one published run."""
    name = f"HEAD:{FOLDER}/{row['experiment']}.json"
    published = subprocess.run(["git", "-C", str(clone), "show", name], check=True, capture_output=True, text=True).stdout
    adapter = {k: v for k, v in json.loads(published)["run_info"]["peft_config"].items() if v is not None}
    spec = spec_of({**row["spec"]})
    build = model_builder(row["config"], spec)

    def with_adapter() -> torch.nn.Module:
        import peft
        from peft.tuners.boft import layer as boft

        # boft fills a permutation matrix element by element, minutes of operators a model; a trace reads no values
        boft.BOFTLayer.perm2mat = lambda self, indices: torch.zeros(len(indices), len(indices))  # type: ignore[method-assign]
        model = build()
        known = peft.mapping.PEFT_TYPE_TO_CONFIG_MAPPING[peft.PeftType(adapter["peft_type"])]
        fields = set(known.__dataclass_fields__)
        config = known(**{k: v for k, v in adapter.items() if k in fields and k not in _SET_BY_PEFT})
        with torch.device(
            "cpu"
        ):  # the base model is loaded on the card; peft makes its tensors on the host and moves the adapter's
            return peft.get_peft_model(model, config).train()

    kept: dict[str, Any] = {}

    def step(model: Any, batch: dict[str, torch.Tensor]) -> Any:
        torch.cuda.empty_cache()
        kept["outputs"] = model(**batch, use_cache=None, num_items_in_batch=1000)
        kept["loss"] = kept["outputs"].loss
        kept["loss"].backward()
        return kept["loss"].detach()

    def batch(length: int) -> dict[str, torch.Tensor]:
        return {
            k: torch.empty(spec.micro_batch, length, dtype=torch.long, device="meta")
            for k in ("input_ids", "attention_mask", "labels")
        }

    return trace_step(
        model=with_adapter,
        batches=[batch(SHORT_BATCH), batch(spec.sequence_length)],
        training_step=step,
        optimizer_factory=optimizer_of(spec.optimizer).build,
        target=target,
        spec=spec,
        vocabulary=row["config"]["vocab_size"],
    )


_SET_BY_PEFT = {"peft_type", "auto_mapping", "peft_version", "base_model_name_or_path", "inference_mode"}
