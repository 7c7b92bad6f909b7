"""Qualcomm's OpenCL ML under TVM's module name, which is not supported."""

from __future__ import annotations

from collections.abc import Mapping

from ekiden.ir.module import IRModule
from ekiden.runtime.errors import CompileError

__all__ = ["is_clml_runtime_enabled", "partition_for_clml"]


def partition_for_clml(
    mod: IRModule, params: Mapping[str, object] | None = None, **options: object
) -> IRModule:
    """Raise an error: partitioning for Qualcomm's OpenCL ML is not supported.

    Args:
        mod: The module.
        params: Values of parameters by name.
        options: Options of the library.

    Raises:
        CompileError: Always; the message names the way without it.
    """
    raise CompileError(
        "partition_for_clml: no code is made for Qualcomm's OpenCL ML: "
        "an OpenCL target makes kernels of its own for Adreno; a compiler"
        " of your own is registered by ekiden.backend.external.register_external"
    )


def is_clml_runtime_enabled() -> bool:
    """Return False: Qualcomm's OpenCL ML is not supported."""
    return False
