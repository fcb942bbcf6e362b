"""Stuck: nothing moves, or nobody can tell any more."""

from trainbudget.engine.detect.stuck.gpu_lost import GpuLost
from trainbudget.engine.detect.stuck.gpu_unavailable import GpuUnavailable
from trainbudget.engine.detect.stuck.hang import CollectiveHang, Hang
from trainbudget.engine.detect.stuck.no_first_step import NoFirstStep
from trainbudget.engine.detect.stuck.sampling import MonitorDegraded, SamplerStalled

DETECTORS = (GpuLost, GpuUnavailable, CollectiveHang, Hang, NoFirstStep, SamplerStalled, MonitorDegraded)
