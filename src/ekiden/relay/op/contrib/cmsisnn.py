"""Arm's CMSIS-NN under TVM's module name, which is not supported."""

from __future__ import annotations

from collections.abc import Mapping

from ekiden.ir.module import IRModule
from ekiden.runtime.errors import CompileError

__all__ = ["partition_for_cmsisnn"]


def partition_for_cmsisnn(
    mod: IRModule, params: Mapping[str, object] | None = None, **options: object
) -> IRModule:
    """Raise an error: partitioning for Arm's CMSIS-NN is not supported.

    Args:
        mod: The module.
        params: Values of parameters by name.
        options: Options of the library.

    Raises:
        CompileError: Always; the message names the way without it.
    """
    raise CompileError(
        "partition_for_cmsisnn: no code is made for Arm's CMSIS-NN: "
        "the target 'c -mcpu=cortex-m...' makes kernels of its own; a compiler"
        " of your own is registered by ekiden.backend.external.register_external"
    )
