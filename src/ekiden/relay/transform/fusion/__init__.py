"""Fusion: which operators run as one kernel."""
