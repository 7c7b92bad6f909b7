"""Attention kernels: scaled dot-product attention, and paged attention over KV caches."""
