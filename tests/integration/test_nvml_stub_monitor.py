"""A whole run over the scripted driver: what is recorded, and that no driver can hold up a training or its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from native.fake_nvml import GIB, FakeNvml, uuid_of
from trainbudget.events import Fact, Gpu, Header, Reading, Step
from trainbudget.trace import read_trace

pytestmark = pytest.mark.slow

_SCRIPT = """
import time, trainbudget
with trainbudget.Monitor() as monitor:
    for _ in range({steps}):
        with monitor.step(tokens=100, samples=2):
            time.sleep(0.05)
print("trained")
"""

#: What a run of a second takes with its imports on a slow machine; a stuck driver would take an hour.
_GENEROUS_S = 60.0
_STUCK_MS = 3_600_000.0


def train(fake: FakeNvml, folder: Path, steps: int = 20) -> list[Fact]:
    """The trace of a small run in a process of its own, which must end by itself."""
    environment = fake.env() | {
        "TRAINBUDGET_LISTEN": "off",
        "TRAINBUDGET_RUN_DIR": str(folder / "run"),
        "TRAINBUDGET_BACKEND": "auto",
    }
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT.format(steps=steps)],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=_GENEROUS_S,
    )
    assert "trained" in done.stdout
    return list(read_trace(folder / "run" / "trace.jsonl"))


@pytest.fixture
def fake(tmp_path):
    return FakeNvml(tmp_path, cards=2)


def of(facts: list[Fact], kind: type) -> list:
    return [fact for fact in facts if isinstance(fact, kind)]


def test_a_run_records_its_devices_and_what_they_say(fake, tmp_path):
    fake.card(0, **{"proc.0": f"self:{6 * GIB}"})
    facts = train(fake, tmp_path)
    header = of(facts, Header)[0]
    assert (header.backend, header.driver_version, header.backend_error) == ("nvml", "575.57.08", None)
    assert {(gpu.uuid, gpu.owned, gpu.visible) for gpu in of(facts, Gpu)} == {
        (uuid_of(0), True, None),
        (uuid_of(1), False, True),
    }
    first = of(facts, Reading)[0]
    assert (first.gpu, first.utilization_ratio, first.power_w) == (0, 0.97, 312.345)
    assert [process.pid for process in first.processes] == [header.pid]


def test_a_driver_that_cannot_start_is_recorded_with_its_reason(fake, tmp_path):
    fake.fail("nvmlInitWithFlags", 18)
    facts = train(fake, tmp_path)
    assert of(facts, Header)[0].backend_error.code == "driver_mismatch"
    assert sum(step.count or 1 for step in of(facts, Step)) == 20


@pytest.mark.parametrize("function", ["nvmlInitWithFlags", "nvmlDeviceGetUtilizationRates", "nvmlShutdown"])
def test_a_stuck_driver_holds_up_neither_training_nor_exit(fake, tmp_path, function):
    fake.delay(function, _STUCK_MS)
    facts = train(fake, tmp_path)
    assert sum(step.count or 1 for step in of(facts, Step)) == 20
