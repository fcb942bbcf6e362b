"""Who this run is: rank, id, name, directory."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DEFAULT_PARENT = "trainbudget_runs"
#: ASCII digits, and no more of them than a count of processes has: int() takes neither "²" nor thousands of digits.
_INT = re.compile(r"-?[0-9]{1,18}")
#: More restarts than anybody lets a job have: such a number is no count.
_MOST_RESTARTS = 10_000
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """This process among those of the job. `local_*` are on this host; None where nobody says."""

    rank: int = 0
    local_rank: int | None = None
    world_size: int = 1
    local_world_size: int | None = None


def ranks_of(environ: Mapping[str, str]) -> Ranks:
    """From torchrun's variables, else Slurm's when it started several tasks, else Open MPI's."""
    for rank, local, world, local_world in (
        ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
        ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ):
        number, size = _int(environ.get(rank)), _int(environ.get(world))
        if number is not None and size is not None and 0 <= number < size:
            return Ranks(
                rank=number,
                local_rank=_int(environ.get(local)),
                world_size=size,
                local_world_size=_int(environ.get(local_world)),
            )
    return Ranks()


def run_id(environ: Mapping[str, str], ranks: Ranks, *, resumed: str | None = None) -> str:
    """The job's id, the same on all of its ranks.

    TRAINBUDGET_RUN_ID, else Slurm's job (and array task), else torchrun's run id unless `none`, else the one of the
    checkpoint resumed from, else start time and a random part for one process, else a hash of the rendezvous address.
    """
    given = environ.get("TRAINBUDGET_RUN_ID")
    if given:
        return safe_name(given)
    job = environ.get("SLURM_JOB_ID")
    if job:
        task = environ.get("SLURM_ARRAY_TASK_ID")
        return safe_name(f"{job}_{task}" if task else job)
    elastic = environ.get("TORCHELASTIC_RUN_ID")
    if elastic and elastic != "none":
        return safe_name(elastic)
    if resumed:
        return safe_name(resumed)
    if ranks.world_size == 1:
        return time.strftime("%m%d-%H%M%S", time.localtime()) + "-" + secrets.token_hex(2)
    address = f"{environ.get('MASTER_ADDR', '')}:{environ.get('MASTER_PORT', '')}:{os.getppid()}"
    return hashlib.sha256(address.encode()).hexdigest()[:8]


def run_name(given: str | None, *, fallback: str | None = None) -> str:
    """The name to show and to build the directory from: given, the framework's, else the script's."""
    for candidate in (given, fallback, _script_name()):
        if candidate and safe_name(candidate) != "run":
            return candidate
    return given or "run"


def safe_name(text: str) -> str:
    """At most 64 characters that are safe in a path on every system."""
    cleaned = _UNSAFE.sub("-", text).strip("-.")[:64].strip("-.")
    return cleaned or "run"


def run_directory(*, name: str, identity: str, parent: str | None, own: str | None) -> Path:
    """Where the job writes: `PARENT/NAME-ID`, or its own directory."""
    return Path(own) if own else Path(parent or DEFAULT_PARENT) / f"{safe_name(name)}-{identity}"


def rank_directory(job: Path, ranks: Ranks, attempt: int) -> Path:
    """Where this rank of an attempt (from 1) writes: `NAME-ID`, then `NAME-ID-2`; in each `ranks/N` for rank N > 0."""
    base = job if attempt == 1 else job.with_name(f"{job.name}-{attempt}")
    return base / "ranks" / str(ranks.rank) if ranks.rank > 0 else base


def attempt_of(environ: Mapping[str, str]) -> int:
    """Which attempt of the job this is, from 1: torchrun's restarts of its workers, else Slurm's of a requeued job."""
    for variable in ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"):
        restarts = _int(environ.get(variable))
        if restarts is not None and 0 <= restarts < _MOST_RESTARTS:
            return restarts + 1
    return 1


def prepare_directory(directory: Path, ranks: Ranks) -> None:
    """Make it; a `.gitignore` of `*` keeps records out of the user's repository."""
    directory.mkdir(parents=True, exist_ok=True)
    base = directory.parent.parent if ranks.rank > 0 else directory
    if base.parent.name == DEFAULT_PARENT:
        ignore = base.parent / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n", encoding="ascii")


def _script_name() -> str | None:
    script = Path(sys.argv[0]).stem if sys.argv and sys.argv[0] else ""
    return script if script not in ("", "-c", "__main__", "ipykernel_launcher") else None


def _int(value: str | None) -> int | None:
    return int(value) if value is not None and _INT.fullmatch(value.strip()) else None
