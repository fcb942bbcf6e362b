"""Hardware: a device that does less than it could, or reports faults."""

from trainbudget.engine.detect.hardware.faults import EccErrors, Xid
from trainbudget.engine.detect.hardware.pcie import PcieDegraded
from trainbudget.engine.detect.hardware.power import PowerCap
from trainbudget.engine.detect.hardware.thermal import ThermalThrottle

DETECTORS = (Xid, EccErrors, ThermalThrottle, PowerCap, PcieDegraded)
