"""NVIDIA's CUTLASS under TVM's module name, which is not supported."""

from __future__ import annotations

from collections.abc import Mapping

from ekiden.ir.module import IRModule
from ekiden.runtime.errors import CompileError

__all__ = ["has_cutlass", "partition_for_cutlass"]


def partition_for_cutlass(
    mod: IRModule, params: Mapping[str, object] | None = None, **options: object
) -> IRModule:
    """Raise an error: partitioning for NVIDIA's CUTLASS is not supported.

    Args:
        mod: The module.
        params: Values of parameters by name.
        options: Options of the library.

    Raises:
        CompileError: Always; the message names the way without it.
    """
    raise CompileError(
        "partition_for_cutlass: no code is made for NVIDIA's CUTLASS: "
        "the target 'cuda' makes kernels of its own; a compiler"
        " of your own is registered by ekiden.backend.external.register_external"
    )


def has_cutlass() -> bool:
    """Return False: NVIDIA's CUTLASS is not supported."""
    return False
