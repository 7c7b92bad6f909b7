"""LLVM code generator; lowered loop programs to IR text, machine code, and native code images."""

from typing import TYPE_CHECKING

from ekiden._lazy import attach
from ekiden.codegen.llvm._exports import EXPORTS

if TYPE_CHECKING:
    from ekiden.codegen.llvm.compiler import (
        LLVM_VERSION,
        assembly,
        assembly_of_text,
        check_target,
        check_triple,
        compile_object,
        compile_text,
        held,
    )
    from ekiden.codegen.llvm.debug import DebugLines
    from ekiden.codegen.llvm.image import ImageInfo, inspect, link
    from ekiden.codegen.llvm.module_emitter import emit, emit_all

__all__ = [
    "LLVM_VERSION",
    "DebugLines",
    "ImageInfo",
    "assembly",
    "assembly_of_text",
    "check_target",
    "check_triple",
    "compile_object",
    "compile_text",
    "emit",
    "emit_all",
    "held",
    "inspect",
    "link",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(__name__, EXPORTS, registers=True)
