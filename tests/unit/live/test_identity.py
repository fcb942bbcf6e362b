"""Who a run is: ranks, id, name and directory from the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainbudget.live.identity import (
    Ranks,
    attempt_of,
    prepare_directory,
    rank_directory,
    ranks_of,
    run_directory,
    run_id,
    run_name,
    safe_name,
)

ALONE = Ranks()


@pytest.mark.parametrize(
    ("environ", "ranks"),
    [
        ({}, ALONE),
        (
            {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"},
            Ranks(rank=3, world_size=8, local_rank=1, local_world_size=4),
        ),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "1"}, Ranks(rank=1, world_size=2, local_rank=1)),
        (
            {"RANK": "0", "WORLD_SIZE": "1", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"},
            Ranks(rank=0, world_size=1),
        ),
        ({"RANK": "8", "WORLD_SIZE": "8"}, ALONE),
        ({"RANK": "x", "WORLD_SIZE": "8"}, ALONE),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, Ranks(rank=1, world_size=2)),
    ],
)
def test_ranks(environ, ranks):
    assert ranks_of(environ) == ranks


@pytest.mark.parametrize(
    ("environ", "identity"),
    [
        ({"TRAINBUDGET_RUN_ID": "mine/7", "SLURM_JOB_ID": "9"}, "mine-7"),
        ({"SLURM_JOB_ID": "9", "TORCHELASTIC_RUN_ID": "t"}, "9"),
        ({"SLURM_JOB_ID": "9", "SLURM_ARRAY_TASK_ID": "4"}, "9_4"),
        ({"TORCHELASTIC_RUN_ID": "t"}, "t"),
    ],
)
def test_ids_that_somebody_gave(environ, identity):
    assert run_id(environ, ALONE) == identity


def test_ids_that_nobody_gave():
    assert run_id({"TORCHELASTIC_RUN_ID": "none"}, ALONE, resumed="old") == "old"
    first, second = run_id({}, ALONE), run_id({}, ALONE)
    assert first != second
    many = Ranks(rank=1, world_size=2)
    rendezvous = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
    assert run_id(rendezvous, many) == run_id(rendezvous, Ranks(rank=0, world_size=2))
    assert run_id(rendezvous, many) != run_id(rendezvous | {"MASTER_PORT": "29501"}, many)


def test_names_fall_back(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/some/where/train_llama.py"])
    assert run_name("given", fallback="frameworks") == "given"
    assert run_name(None, fallback="frameworks") == "frameworks"
    assert run_name(None) == "train_llama"
    monkeypatch.setattr("sys.argv", ["-c"])
    assert run_name(None) == "run"


def test_names_are_safe_in_paths():
    assert safe_name("../../etc/passwd") == "etc-passwd"
    assert safe_name("日本") == "run"
    assert len(safe_name("x" * 500)) == 64


def test_directories_of_ranks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = {"name": "a b", "identity": "7", "parent": None, "own": None}
    job = run_directory(**arguments)
    assert rank_directory(job, ALONE, 1) == job == Path("trainbudget_runs/a-b-7")
    third = rank_directory(job, Ranks(rank=3, world_size=4), 1)
    assert third == job / "ranks" / "3"
    prepare_directory(third, Ranks(rank=3, world_size=4))
    assert third.is_dir()
    assert Path("trainbudget_runs/.gitignore").read_text() == "*\n"
    own = run_directory(**arguments | {"own": str(tmp_path / "mine")})
    prepare_directory(own, ALONE)
    assert not (tmp_path / ".gitignore").exists()


def test_the_ranks_of_an_attempt_write_side_by_side():
    job = Path("runs/a-7")
    assert rank_directory(job, ALONE, 2) == Path("runs/a-7-2")
    assert rank_directory(job, Ranks(rank=1, world_size=2), 2) == Path("runs/a-7-2/ranks/1")


@pytest.mark.parametrize(
    ("environ", "attempt"),
    [
        ({}, 1),
        ({"TORCHELASTIC_RESTART_COUNT": "0"}, 1),
        ({"TORCHELASTIC_RESTART_COUNT": "2", "SLURM_RESTART_COUNT": "5"}, 3),
        ({"SLURM_RESTART_COUNT": "1"}, 2),
        ({"TORCHELASTIC_RESTART_COUNT": "-1"}, 1),
        ({"TORCHELASTIC_RESTART_COUNT": "many"}, 1),
        ({"TORCHELASTIC_RESTART_COUNT": "9" * 18}, 1),
    ],
)
def test_which_attempt_this_is(environ, attempt):
    assert attempt_of(environ) == attempt
