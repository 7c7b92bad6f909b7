"""Kernels over integers of few bits: products of bytes and nibbles, scales, roundings."""
