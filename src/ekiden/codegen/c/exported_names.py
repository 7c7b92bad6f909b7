"""The names of `ekiden.codegen.c`, loaded when the first is used."""

from ekiden.codegen.c.compiler import check_target, compile_c, compiler_version
from ekiden.codegen.c.functions import emit, emit_module

__all__ = ["check_target", "compile_c", "compiler_version", "emit", "emit_module"]
