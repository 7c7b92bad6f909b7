"""Profiling of runs; reports, charts, repeated measurements."""
