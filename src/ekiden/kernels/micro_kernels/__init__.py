"""Micro-kernels shared by kernel families: register tiles, prefetching, packing, epilogues."""
