"""Kernels on quantised data: int8 and int4 products, scales, rounding."""
