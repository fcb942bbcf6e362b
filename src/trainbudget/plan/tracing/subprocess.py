"""Trace in a process of its own: an operator that fails inside backward aborts the process it runs in, and memory is given
back."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from trainbudget.errors import ConfigError
from trainbudget.plan.tracing.failure import TraceFailed, reason_in_stderr
from trainbudget.plan.tracing.trace import Trace, decode_trace
from trainbudget.plan.train_spec import TargetGpu, TrainSpec

DEFAULT_TIMEOUT_S = 300.0


class TraceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the worker is to trace."""

    model_config: Any
    spec: TrainSpec
    target: TargetGpu


def trace_in_subprocess(
    model_config: Mapping[str, Any] | str | Path,
    spec: TrainSpec,
    target: TargetGpu | None = None,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    nice: int = 0,
) -> Trace:
    """``trace_config`` in a child process.

    Args:
        nice: added to the child's niceness, so that a plan beside a running training takes only idle time.

    Raises:
        ConfigError: the configuration cannot be read or contradicts itself.
        TraceFailed: it cannot be traced, takes longer than ``timeout_s`` or aborts; the text is one line.
    """
    config = str(model_config) if isinstance(model_config, Path) else model_config
    request = TraceRequest(model_config=config, spec=spec, target=target or TargetGpu())
    with tempfile.TemporaryDirectory(prefix="trainbudget-trace-") as folder:
        asked, answered = Path(folder) / "request", Path(folder) / "trace"
        asked.write_bytes(msgspec.msgpack.encode(request))
        command = [sys.executable, "-m", "trainbudget.plan.tracing.worker", str(asked), str(answered)]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
                env=worker_environment(),
                preexec_fn=(lambda: os.nice(nice) and None) if nice else None,
            )
        except subprocess.TimeoutExpired as exc:
            raise TraceFailed(f"tracing took longer than {timeout_s:.0f} s") from exc
        if done.returncode == 0 and answered.exists():
            return decode_trace(answered.read_bytes())
        raise _failure(done.returncode, done.stderr)


def worker_environment() -> dict[str, str]:
    """The child's environment: no GPU is touched, no network, one thread (fake tensors do no arithmetic)."""
    return {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
        "TRAINBUDGET_DISABLED": "1",
    }


def _failure(code: int, stderr: str) -> Exception:
    for line in reversed(stderr.splitlines()):
        if line.startswith("trainbudget-config: "):
            return ConfigError(line.removeprefix("trainbudget-config: "))
        if line.startswith("trainbudget-failed: "):
            return TraceFailed(line.removeprefix("trainbudget-failed: "))
    operator = reason_in_stderr(stderr)
    if operator is not None:
        return TraceFailed(operator)
    last = next((line for line in reversed(stderr.splitlines()) if line.strip()), "no message")
    return TraceFailed(f"the tracing process ended with code {code}: {last.strip()[:240]}")
