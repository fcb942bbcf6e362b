"""Ranks that a launcher started without telling it by variables, and copies in loader workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainbudget.live.identity import Ranks
from trainbudget.monitor import Monitor


def test_ranks_told_by_the_framework_count(tmp_path, monkeypatch) -> None:
    """Two ranks of Lightning's ddp_spawn once were two runs, each rank 0 of 1 and both on GPU 0."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    monitor = Monitor(backend="mock:healthy", listen="off", log=False, run_directory=str(tmp_path / "run"))
    monitor.run.given_ranks = Ranks(rank=1, local_rank=1, world_size=2, local_world_size=2)
    with monitor, monitor.step():
        pass
    assert monitor.directory == tmp_path / "run" / "ranks" / "1"
    assert monitor.report is not None
    assert (monitor.report.header.rank, monitor.report.header.world_size) == (1, 2)


class _Data:
    """A data set that holds a monitor, as a user's may."""

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> bool:
        with self.monitor.step():
            return self.monitor.inert


@pytest.mark.slow
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_monitor_taken_into_a_loader_worker_does_nothing_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3]))  # a spawned worker imports this module by its name
    data = pytest.importorskip("torch.utils.data")
    monitor = Monitor(backend="none", listen="off", log=False, directory=str(tmp_path / "runs"), run_name="x")
    with monitor, monitor.step():
        loader = data.DataLoader(_Data(monitor), num_workers=1, batch_size=None, multiprocessing_context=start)
        assert all(list(loader))
    assert len(list((tmp_path / "runs").iterdir())) == 1
