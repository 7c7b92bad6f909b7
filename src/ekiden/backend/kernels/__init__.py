"""Kernel compilation: fused functions in canonical form are lowered to loops, compiled to native
code, and cached on disk.
"""

from typing import TYPE_CHECKING

from ekiden._lazy import attach

if TYPE_CHECKING:
    from ekiden.backend.kernels.build import CompiledKernels, build_kernels
    from ekiden.backend.kernels.lower import lower_primitive

__all__ = ["CompiledKernels", "build_kernels", "lower_primitive"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(
        __name__,
        {"build": "CompiledKernels build_kernels", "lower": "lower_primitive"},
        registers=True,
    )
