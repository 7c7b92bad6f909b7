"""Allocation: lifetimes, offsets in arenas, results in the bytes of their inputs."""
