"""Attention kernels: scaled dot products, and caches of keys and values in pages."""
