"""Kernel families for devices of many threads: blocks of threads, tiles, tensor cores."""
