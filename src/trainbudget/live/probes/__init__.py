"""Probes: what the process itself can tell beside the driver. The only files of the live part that know torch."""
