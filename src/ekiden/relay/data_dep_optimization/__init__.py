"""Optimisations that change a program together with its parameter values."""

from ekiden.relay.data_dep_optimization import bsr_conv2d, bsr_dense, simplify_fc_transpose

__all__ = ["bsr_conv2d", "bsr_dense", "simplify_fc_transpose"]
