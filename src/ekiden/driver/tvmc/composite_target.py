"""Code generators of `--target "ENGINE, llvm"`: engines to which regions of a model are offloaded,
and those of TVM, which are refused with a message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypedDict

from ekiden.byoc.backend import installed_backends, partition
from ekiden.ir.module import IRModule
from ekiden.runtime.errors import CompileError, InputError

__all__ = ["get_codegen_by_target", "get_codegen_names"]

TVM_CODEGENS: Mapping[str, str] = {
    "bnns": "Apple's BNNS",
    "clml": "Qualcomm's OpenCL ML",
    "cmsis-nn": "Arm's CMSIS-NN",
    "compute-library": "Arm's Compute Library",
    "ethos-n": "Arm's Ethos-N",
    "ethos-u": "Arm's Ethos-U",
    "mrvl": "Marvell's accelerators",
    "vitis-ai": "AMD's Vitis AI",
}
"""Code generators that TVM has and Ekiden has not, with the name of what they are for."""


class Codegen(TypedDict):
    """Code generator: the option of its configuration, and the pass that partitions a module."""

    config_key: str | None
    pass_pipeline: Callable[..., IRModule]


def get_codegen_names() -> list[str]:
    """Return the names that a target may have before a comma."""
    return [*installed_backends(), *TVM_CODEGENS]


def get_codegen_by_target(name: str) -> Codegen:
    """Return the code generator of a name. Raises InputError for an unknown one."""
    if name not in get_codegen_names():
        raise InputError(
            f"tvmc: no code generator is called '{name}'; there are: "
            + ", ".join(get_codegen_names())
        )

    def partition_for_codegen(
        mod: IRModule, params: Mapping[str, object] | None = None, **options: object
    ) -> IRModule:
        """Cut out regions for the engine. Raises CompileError for an engine that is only TVM's."""
        if name in TVM_CODEGENS:
            raise CompileError(
                f"tvmc: no code is made for {TVM_CODEGENS[name]} ('{name}'); a compiler of your own"
                " is registered by ekiden.backend.external.register_external"
            )
        if options:
            raise InputError(f"tvmc: the engine '{name}' has no option '{next(iter(options))}'")
        return partition(mod, name)

    return {"config_key": None, "pass_pipeline": partition_for_codegen}
