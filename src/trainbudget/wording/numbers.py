"""Quantities under the name that sinks, verbs and tables import; detectors use the same ones."""

from trainbudget.quantities import UNKNOWN, count, duration, money, percent, signed_percent, size

__all__ = ["UNKNOWN", "count", "duration", "money", "percent", "signed_percent", "size"]
