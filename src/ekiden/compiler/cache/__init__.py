"""Disk caches of compiled models and kernels; its keys, files and folders."""
