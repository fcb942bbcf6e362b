"""Ranks: one holds the others up, they carry unequal loads, one has failed. Raised by rank 0 alone, for the whole job."""

from trainbudget.engine.detect.ranks.failed import RankFailedFirst
from trainbudget.engine.detect.ranks.imbalance import RankImbalance
from trainbudget.engine.detect.ranks.straggler import Straggler

DETECTORS = (RankFailedFirst, Straggler, RankImbalance)
