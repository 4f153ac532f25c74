"""Measurements: workloads, timing, provenance, ceilings."""
