"""Memory: what will not fit, what grows, who else holds it, and why it failed."""

from __future__ import annotations

from trainbudget.engine.detect.memory.ahead import OomForecast
from trainbudget.engine.detect.memory.disk import DiskForecast
from trainbudget.engine.detect.memory.evaluation import EvalAccumulation
from trainbudget.engine.detect.memory.fragmentation import MemoryFragmentation
from trainbudget.engine.detect.memory.host import HostMemoryForecast
from trainbudget.engine.detect.memory.leak import MemoryLeak
from trainbudget.engine.detect.memory.left import LeftoverMemory, ResumeExcess
from trainbudget.engine.detect.memory.oom import Oom
from trainbudget.engine.detect.memory.others import ForeignMemory, RankExtraMemory, StaleHolder
from trainbudget.engine.detect.memory.predicted import OomNextPhase, OomPredicted
from trainbudget.engine.detect.memory.pressure import MemoryOverBudget, MemoryPressure
from trainbudget.engine.detect.memory.spill import SystemMemorySpill

DETECTORS = (
    RankExtraMemory,
    StaleHolder,
    ForeignMemory,
    MemoryLeak,
    EvalAccumulation,
    MemoryFragmentation,
    SystemMemorySpill,
    MemoryPressure,
    ResumeExcess,
    LeftoverMemory,
    MemoryOverBudget,
    OomPredicted,
    OomNextPhase,
    OomForecast,
    HostMemoryForecast,
    DiskForecast,
    Oom,
)
