"""Efficiency: the GPU works, and could do the same work for less."""

from __future__ import annotations

from trainbudget.engine.detect.efficiency.batch import BatchArithmetic
from trainbudget.engine.detect.efficiency.busy import BusyButSlow
from trainbudget.engine.detect.efficiency.kernels import EagerAttention, LargeLogits, SlowOptimizer
from trainbudget.engine.detect.efficiency.memory_use import NeedlessOffload, NeedlessRecompute, UnderusedMemory
from trainbudget.engine.detect.efficiency.padding import PaddingWaste
from trainbudget.engine.detect.efficiency.precision import PrecisionUnused
from trainbudget.engine.detect.efficiency.scaling import ScalingInefficient
from trainbudget.engine.detect.efficiency.step_budget import StepOverBudget

DETECTORS = (
    BusyButSlow,
    StepOverBudget,
    PaddingWaste,
    ScalingInefficient,
    BatchArithmetic,
    UnderusedMemory,
    NeedlessRecompute,
    NeedlessOffload,
    PrecisionUnused,
    EagerAttention,
    SlowOptimizer,
    LargeLogits,
)
