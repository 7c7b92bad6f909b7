"""Kernel families for processors: matrix products, convolutions, reductions, elementwise nests."""
