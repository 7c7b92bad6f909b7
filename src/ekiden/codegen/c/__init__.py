"""The C code generator: lowered loop programs to readable C11, and to object code through the
system's compiler."""

from ekiden.codegen.c.compiler import check_target, compile_text, compiler_version
from ekiden.codegen.c.emit import emit, emit_all

__all__ = ["check_target", "compile_text", "compiler_version", "emit", "emit_all"]
