"""Regions for external compilers: marked, merged, partitioned."""
