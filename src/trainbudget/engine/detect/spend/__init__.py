"""Spend: time and money against what was planned, and what it bought."""

from __future__ import annotations

from trainbudget.engine.detect.spend.budgets import CostOverBudget, TimeOverBudget
from trainbudget.engine.detect.spend.learning import NothingLearned
from trainbudget.engine.detect.spend.shares import EvalShare, LogShare, SaveShare
from trainbudget.engine.detect.spend.unsaved import UnsavedWork
from trainbudget.engine.detect.spend.wasted import WastedSpend

DETECTORS = (CostOverBudget, TimeOverBudget, EvalShare, SaveShare, LogShare, NothingLearned, UnsavedWork, WastedSpend)
