"""Micro-kernels that families share: register tiles, prefetching, packing, epilogues."""
