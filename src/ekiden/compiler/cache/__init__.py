"""Disk caches of compiled models and kernels: keys, files and folders."""
