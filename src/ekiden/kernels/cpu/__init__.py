"""CPU kernel families: matrix products, convolutions, reductions, elementwise nests."""
