"""LLVM code generator; lowered loop programs to IR text, machine code, and native code images."""

from typing import TYPE_CHECKING

from ekiden._lazy import attach
from ekiden.codegen.llvm._exports import EXPORTED_NAMES

if TYPE_CHECKING:
    from ekiden.codegen.llvm.compiler import (
        LLVM_VERSION,
        assembly,
        check_target,
        check_triple,
        compile_ir,
        compile_object,
        ir_to_assembly,
        llvm_lock,
        program_ir,
    )
    from ekiden.codegen.llvm.debug import DebugInfo
    from ekiden.codegen.llvm.image import ImageInfo, link_image, parse_image
    from ekiden.codegen.llvm.module_emitter import emit_function, emit_module

__all__ = [
    "LLVM_VERSION",
    "DebugInfo",
    "ImageInfo",
    "assembly",
    "check_target",
    "check_triple",
    "compile_ir",
    "compile_object",
    "emit_function",
    "emit_module",
    "ir_to_assembly",
    "link_image",
    "llvm_lock",
    "parse_image",
    "program_ir",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(__name__, EXPORTED_NAMES, registers=True)
