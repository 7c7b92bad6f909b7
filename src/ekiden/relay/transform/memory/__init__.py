"""Allocation: lifetimes, places in arenas, results in the bytes of their inputs."""
