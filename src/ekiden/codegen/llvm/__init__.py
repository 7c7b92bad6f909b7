"""LLVM code generator; lowered loop programs to IR text, machine code, and native code images."""

from typing import TYPE_CHECKING

from ekiden._lazy import attach, exported_names
from ekiden.codegen.llvm._exports import EXPORTED_NAMES

if TYPE_CHECKING:
    from ekiden.codegen.llvm.compiler import LLVM_VERSION as LLVM_VERSION
    from ekiden.codegen.llvm.compiler import assembly as assembly
    from ekiden.codegen.llvm.compiler import check_target as check_target
    from ekiden.codegen.llvm.compiler import check_triple as check_triple
    from ekiden.codegen.llvm.compiler import compile_ir as compile_ir
    from ekiden.codegen.llvm.compiler import compile_object as compile_object
    from ekiden.codegen.llvm.compiler import ir_to_assembly as ir_to_assembly
    from ekiden.codegen.llvm.compiler import llvm_lock as llvm_lock
    from ekiden.codegen.llvm.compiler import program_ir as program_ir
    from ekiden.codegen.llvm.debug_info import DebugInfo as DebugInfo
    from ekiden.codegen.llvm.image import ImageInfo as ImageInfo
    from ekiden.codegen.llvm.image import link_image as link_image
    from ekiden.codegen.llvm.image import parse_image as parse_image
    from ekiden.codegen.llvm.module_emitter import emit_function as emit_function
    from ekiden.codegen.llvm.module_emitter import emit_module as emit_module

__all__ = exported_names(EXPORTED_NAMES)

if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(__name__, EXPORTED_NAMES, registers=True)
