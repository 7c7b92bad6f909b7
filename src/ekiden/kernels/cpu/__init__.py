"""Kernel families for CPUs: matrix products, convolutions, reductions, elementwise nests."""
