"""Reports for tests of sinks: a full one in which everything is known, and small variations of it."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from trainbudget.engine.forecast import Projection
from trainbudget.engine.ledger import BUCKETS
from trainbudget.engine.report import GpuReport, LedgerLine, Report, StepsReport
from trainbudget.events import (
    Allocator,
    BackendError,
    Bound,
    Gpu,
    Header,
    HostReading,
    Model,
    Price,
    Process,
    Reading,
    Self,
)
from trainbudget.findings import Finding, Forecast, Severity

THROTTLES = ["sw_power_cap", "hw_slowdown"]
FAILED = ("sm_active", "ecc")
#: Buckets that few runs have.
RARE = ("log", "optimizer_offload", "lost", "other")


def gpu_report(index: int = 0, **more: Any) -> GpuReport:
    reading = Reading(
        t_s=99.0,
        gpu=index,
        utilization_ratio=0.97,
        memory_utilization_ratio=0.5,
        memory_used_bytes=60 * 2.0**30,
        memory_free_bytes=20 * 2.0**30,
        memory_reserved_bytes=0.5 * 2.0**30,
        context_bytes=0.4 * 2.0**30,
        power_w=612.5,
        temperature_c=66.0,
        sm_clock_hz=1.98e9,
        sm_active_ratio=0.8,
        tensor_active_ratio=0.4,
        energy_j=61250.0,
        pcie_gen=4,
        pcie_width=16,
        throttle=THROTTLES,
        ecc_corrected=3.0,
        ecc_uncorrected=0.0,
        processes=[Process(pid=1, memory_bytes=59e9, own=True), Process(pid=2, memory_bytes=1e9, own=False)],
    )
    allocator = Allocator(
        gpu=index,
        allocated_bytes=40e9,
        reserved_bytes=50e9,
        active_bytes=41e9,
        inactive_split_bytes=1e9,
        alloc_retries=2.0,
        ooms=0.0,
    )
    values: dict[str, Any] = {
        "info": Gpu(
            gpu=index,
            uuid=f"GPU-{index}",
            name="NVIDIA H100 80GB HBM3",
            memory_total_bytes=80 * 2.0**30,
            power_limit_w=700.0,
            pcie_gen_max=5,
            pcie_width_max=16,
            compute_capability="9.0",
            mig=False,
        ),
        "reading": reading,
        "allocator": allocator,
        "limit_bytes": 79.2 * 2.0**30,
        "peak_used_bytes": 61 * 2.0**30,
        "peak_allocated_bytes": 45e9,
        "peak_reserved_bytes": 51e9,
        "headroom_bytes": 18.2 * 2.0**30,
        "errors_total": dict.fromkeys(FAILED, 1),
        "last_reading_s": 99.0,
    }
    return GpuReport(**{**values, **more})


def finding(code: str, severity: Severity = Severity.WARNING, **more: Any) -> Finding:
    return Finding(**{"code": code, "severity": severity, "raised_s": 50.0, "summary": f"{code} in words", **more})


def report(gpus: int = 1, **more: Any) -> Report:
    """A report of a priced run of 100 s in which every metric is known."""
    lines = {b: LedgerLine(gpu_seconds=10.0 + i, ratio=0.05, cost=0.01 * (i + 1)) for i, b in enumerate(BUCKETS) if b not in RARE}
    waste = {b: lines[b] for b in ("eval", "data_wait", "host_gap", "padding", "idle", "stall")}
    values: dict[str, Any] = {
        "header": Header(run="llama-lora", id="7f3a", framework="huggingface", backend="nvml", world_size=1, rank=0),
        "t_s": 100.0,
        "wall_s": 100.0,
        "gaps_s": 0.0,
        "state": "training",
        "outcome": None,
        "phase": None,
        "steps": StepsReport(
            done=90,
            last=90,
            total=1000.0,
            step_time_s=0.95,
            data_wait_s=0.1,
            samples=360.0,
            tokens=9000.0,
            useful_tokens=7000.0,
            tokens_per_s=95.0,
            model_flops_utilization_ratio=0.38,
            last_end_s=98.0,
            histogram=(0, 0, 0, 0, 10, 70, 8, 2, 0, 0, 0, 0),
            step_sum_s=85.5,
        ),
        "gpus": tuple(gpu_report(i) for i in range(gpus)),
        "host": HostReading(rss_bytes=4e9, children_rss_bytes=2e9, memory_available_bytes=99e9, cpu_ratio=0.3),
        "model": Model(autocast="bf16"),
        "ledger": lines,
        "pending_gpu_seconds": 1.5,
        "gpu_seconds": sum(line.gpu_seconds for line in lines.values()),
        "charged_gpus": gpus,
        "wait_assumed": False,
        "price": Price(per_gpu_hour=2.49, currency="USD", source="lambda", date="2026-07-20"),
        "currency": "USD",
        "cost": 1.25,
        "wasted_gpu_seconds": 42.0,
        "wasted_cost": 0.2,
        "wasted_by": waste,
        "budget": {
            "cost": Bound(value=2.0),
            "run_time_s": Bound(value=1000.0),
            "step_time_s": Bound(value=0.94),
            "memory_peak_bytes": Bound(value=49.4 * 2.0**30),
        },
        "projection": Projection(1050.0, 1000.0, 1100.0, 1050.0, 1.0, 2.4, 2.2, 2.6),
        "findings": (
            finding("input_bound"),
            finding("hang", Severity.CRITICAL, cleared_s=60.0),
            finding("oom_forecast", Severity.CRITICAL, gpu=0, forecast=Forecast(at_s=232.0, at_step=230.0)),
        ),
        "self_": Self(hook_s=0.01, sample_s=0.2, feed_s=0.1, cpu_s=0.3, dropped=0, merged=4, errors={"sampler": 1}),
        "missing": (),
        "events": 500,
        "data_wait_ratio": 0.11,
        "phase_seconds": {"eval": 5.0, "save": 2.0},
    }
    return Report(**{**values, **more})


def unknown_report() -> Report:
    """A report of a run about which next to nothing is known."""
    return replace(
        report(),
        header=Header(backend="none", backend_error=BackendError(code="library_not_found")),
        state="starting",
        steps=StepsReport(),
        gpus=(GpuReport(info=Gpu(gpu=0)),),
        host=None,
        model=None,
        ledger={},
        pending_gpu_seconds=0.0,
        price=None,
        currency=None,
        cost=None,
        wasted_by={},
        wasted_cost=None,
        budget={},
        projection=None,
        findings=(),
        self_=None,
        data_wait_ratio=None,
        phase_seconds={},
    )
