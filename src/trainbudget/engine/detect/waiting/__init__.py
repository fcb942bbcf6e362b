"""Waiting: GPUs that are paid for and have nothing to do. Most upstream cause first."""

from trainbudget.engine.detect.waiting.after_end import FinishedHoldingGpu, NotebookIdle
from trainbudget.engine.detect.waiting.communication import CommunicationBound
from trainbudget.engine.detect.waiting.epoch_start import EpochStartOverhead
from trainbudget.engine.detect.waiting.gc_pause import GcPause
from trainbudget.engine.detect.waiting.gpu_idle import GpuIdle
from trainbudget.engine.detect.waiting.input_bound import InputBound
from trainbudget.engine.detect.waiting.launch_bound import LaunchBound
from trainbudget.engine.detect.waiting.model_split import NaiveModelParallel
from trainbudget.engine.detect.waiting.optimizer_offload import OptimizerOffload
from trainbudget.engine.detect.waiting.recompile import Recompile
from trainbudget.engine.detect.waiting.slow_start import SlowStart
from trainbudget.engine.detect.waiting.unused_gpu import UnusedGpu

DETECTORS = (
    SlowStart,
    UnusedGpu,
    Recompile,
    GcPause,
    EpochStartOverhead,
    OptimizerOffload,
    NaiveModelParallel,
    InputBound,
    CommunicationBound,
    LaunchBound,
    GpuIdle,
    FinishedHoldingGpu,
    NotebookIdle,
)
