"""Which rank this process is, as its launcher, its framework or torch's process group says."""

from __future__ import annotations

import os
import sys

from trainbudget.live.identity import Ranks, ranks_of


def own_ranks(given: Ranks | None = None) -> Ranks:
    """From the launcher's variables; where they tell of no other process from `given`, else from the process group.

    `torch.multiprocessing.spawn` sets no variables: there only the group knows. Asking it for its rank is local.
    """
    told = ranks_of(os.environ)
    if told.world_size > 1:
        return told
    return given or _group_ranks() or told


def _group_ranks() -> Ranks | None:
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    return Ranks(rank=dist.get_rank(), world_size=dist.get_world_size())
