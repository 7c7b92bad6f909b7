"""Calls of C functions by symbol (`call_extern`, `call_pure_extern`).

The arguments are numbers, texts, and addresses of the first elements of buffers or regions. Who
links or loads the code finds the function (`image.EXTERN_PREFIX`).
"""

from __future__ import annotations

from ekiden.codegen.common import extern_symbol
from ekiden.codegen.llvm.builder import Operand
from ekiden.codegen.llvm.image import EXTERN_PREFIX
from ekiden.codegen.llvm.packed_call import PackedCallEmitter
from ekiden.codegen.llvm.types import memory_type, register_type
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import find_intrinsic
from ekiden.ir.prim import Intrinsic, PrimExpr, StringImm
from ekiden.runtime.errors import CompileError, InternalError
from ekiden.tir.expr import BufferAddress

_EXTENSION_ATTRIBUTES = {
    "bool": " zeroext", "uint8": " zeroext", "uint16": " zeroext", "int8": " signext",
    "int16": " signext",
}  # fmt: skip
"""Extension attributes (signext, zeroext) that the C calling convention requires of callers."""


class ExternCallEmitter(PackedCallEmitter):
    """Emitter of `call_extern`."""

    def call_extern(self, e: Intrinsic) -> Operand:
        """Emit the call of a C function. Vectorised loops that make such calls were serialised
        before.
        """
        name, b = extern_symbol(e, "llvm"), self.builder
        if b.module.is_wasm:
            raise CompileError(f"llvm: call_extern {name!r}: WebAssembly has no C symbols to call")
        if any(dt.lanes(operand.dtype) > 1 for operand in (e, *e.args[1:])):
            raise InternalError(f"llvm: {e.op}: an argument is a vector: {e!r}")
        arguments = [self._emit_argument(a) for a in e.args[1:]]
        result, symbol = _typed_with_extension(e.dtype), f"{EXTERN_PREFIX}{name}"
        result = " ".join(reversed(result.split()))  # an attribute stands before a result's type
        self.module.declare(symbol, result, [kind for kind, _ in arguments])
        argument_list = ", ".join(f"{kind} {operand}" for kind, operand in arguments)
        value = b.append_value(f"call {result} @{symbol}({argument_list})")
        if find_intrinsic(e.op).has_effects:
            # The function may have written to any buffer.
            b.touch_memory()
        return value

    def _emit_argument(self, a: PrimExpr) -> tuple[str, Operand]:
        """Return (type with its extension attribute, operand) of an argument."""
        if isinstance(a, StringImm):
            return "ptr", self.module.string_constant(a.value)
        if isinstance(a, BufferAddress):
            return self.region_address(a)
        return _typed_with_extension(a.dtype), self.emit_expr(a)

    def region_address(self, a: BufferAddress) -> tuple[str, Operand]:
        """Return (type, operand) of the address of a buffer or of a region's first element."""
        kind, data = self.pointer_type(a.buffer), self.pointer(a.buffer)
        if a.indices:
            position = self.emit_expr(a.indices[0])
            element = memory_type(a.buffer.dtype)
            data = self.builder.pure(f"getelementptr {element}, {kind} {data}, i64 {position}")
        return kind, data


def _typed_with_extension(dtype: str) -> str:
    """Return a type as C passes it, with its attribute behind it."""
    return f"{register_type(dtype)}{_EXTENSION_ATTRIBUTES.get(dtype, '')}"
