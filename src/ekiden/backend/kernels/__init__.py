"""Kernels: fused functions lowered to loops, compiled to native code, cached on disk."""

from ekiden.backend.kernels.build import Kernels, build_kernels
from ekiden.backend.kernels.lower import lower_primitive

__all__ = ["Kernels", "build_kernels", "lower_primitive"]
